// OpenAI's JavaScript client against a server: prints as JSON what it read. `node client.mjs URL`, beside node_modules.
import OpenAI from "openai";

const options = { baseURL: `${process.argv[2]}/v1`, apiKey: "unused", maxRetries: 0, timeout: 30_000 };
const client = new OpenAI(options);
const asked = {
  model: "tea",
  messages: [{ role: "user", content: "Tell me a joke." }],
  temperature: 0,
  max_tokens: 12,
};
const found = {};

const answer = await client.chat.completions.create({ ...asked, n: 2, profile: { cheer: 0.75 } });
found.chat = {
  texts: answer.choices.map((choice) => choice.message.content),
  reason: answer.choices[0].finish_reason,
  used: answer.paretune.used,
  completion_tokens: answer.usage.completion_tokens,
};

const stream = await client.chat.completions.create({
  ...asked,
  stream: true,
  stream_options: { include_usage: true },
});
found.stream = { text: "", reasons: [] };
for await (const chunk of stream) {
  found.stream.guided ??= chunk.paretune.used;
  found.stream.text += chunk.choices[0]?.delta.content ?? "";
  if (chunk.choices[0]?.finish_reason) found.stream.reasons.push(chunk.choices[0].finish_reason);
  if (chunk.usage) found.stream.usage = { tokens: chunk.usage.total_tokens, choices: chunk.choices.length };
}

const accumulated = await client.chat.completions.stream(asked).finalChatCompletion();
found.accumulated = accumulated.choices[0].message.content;

const long = await client.chat.completions.create({ ...asked, max_tokens: 400, stream: true });
let chunks = 0;
found.finished = false;
for await (const chunk of long) {
  chunks += 1;
  found.finished ||= Boolean(chunk.choices[0]?.finish_reason);
  if (chunks === 3) long.controller.abort();
}
found.aborted = chunks;

const leaving = new AbortController();
const left = client.chat.completions.create({ ...asked, max_tokens: 400, n: 2 }, { signal: leaving.signal });
setTimeout(() => leaving.abort(), 30);
found.left = await left.then(() => "answered", (error) => error.constructor.name);

found.models = [];
for await (const model of client.models.list()) found.models.push(model.id);
found.model = (await client.models.retrieve("tea")).owned_by;
found.completion = (await client.completions.create({ model: "tea", prompt: "Tea", max_tokens: 3 })).object;

const mistakes = {
  model: { ...asked, model: "coffee" },
  messages: { ...asked, messages: [] },
  stream: { ...asked, stream: true, profile: { cheer: 7 } },
};
found.errors = {};
for (const [name, body] of Object.entries(mistakes)) {
  found.errors[name] = await client.chat.completions.create(body).then(
    () => "answered",
    (error) => ({ name: error.constructor.name, status: error.status, param: error.param, code: error.code }),
  );
}
console.log(JSON.stringify(found));
