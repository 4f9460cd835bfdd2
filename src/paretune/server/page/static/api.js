// Talking to the server: requests, the event stream of an answer, and every failure in words.

/** A failure that the page can show: words, and whether to offer another try (`wait`: seconds to wait before it). */
export class Failure extends Error {
  constructor(message, { status = 0, wait = null, again = true, code = null } = {}) {
    super(message);
    this.status = status;
    this.wait = wait;
    this.again = again;
    this.code = code;
  }
}

let key = "";
/** The API key of this tab; it is kept in memory alone. */
export const setKey = (value) => { key = value; };
export const hasKey = () => key !== "";

/** The address of a route; relative, so that the page works below a path of a proxy too. */
export const address = (path) => new URL(path, document.baseURI).href;

/** Send a request; the response if its status is 2xx. Throws `Failure`, or an AbortError if it was stopped. */
async function request(path, { body, signal } = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(address(path), {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      credentials: "omit",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** A message of the server, which may or may not end in a full stop, as the end of a sentence. */
const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

/** The failure that a response with an error status tells of. */
async function refusal(response) {
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    // no JSON: a proxy answered, say; the status has to do
  }
  const said = typeof told.message === "string" ? told.message : `It answered with status ${response.status}.`;
  const status = response.status, wait = Number(response.headers.get("Retry-After")) || null, code = told.code ?? null;
  if (status === 401) return new Failure(`The server wants an API key: ${sentence(said)}`, { status, code });
  if (status === 429) {
    const when = wait ? `in ${wait} ${wait === 1 ? "second" : "seconds"}` : "in a moment";
    return new Failure(`The server is busy. Try again ${when}.`, { status, wait, code });
  }
  if (status === 503) return new Failure(`The server cannot answer now: ${sentence(said)}`, { status, wait, code });
  if (status >= 500) return new Failure(`The server failed: ${sentence(said)}`, { status, code });
  if (code === "context_length_exceeded") {
    const hint = "Clear the conversation, or shorten your message or the longest answer.";
    return new Failure(`This is too long for the model: ${sentence(said)} ${hint}`, { status, code, again: false });
  }
  return new Failure(`The server refused this: ${sentence(said)}`, { status, code, again: false });
}

/** A route's JSON. Throws `Failure`. */
export async function ask(path, options) {
  const response = await request(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server's answer is not what this page expects.");
  }
}

/**
 * Stream a chat completion: `onChunk` gets each chunk's object. Resolves when the stream has ended as it should.
 * Throws `Failure` (in the stream too, and when it breaks off), or an AbortError.
 */
export async function stream(body, onChunk, signal) {
  const response = await request("v1/chat/completions", { body: { ...body, stream: true }, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", whole = false;
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => ({ done: true })); // broken off or stopped: see below
      if (done) break;
      const events = (rest + value).split(/\r?\n\r?\n/);
      rest = events.pop();
      for (const event of events) whole = take(event, onChunk) || whole;
    }
  } finally {
    reader.cancel().catch(() => {}); // of an answer that has failed nothing more is wanted
  }
  if (!whole && signal.aborted) throw new DOMException("stopped", "AbortError");
  if (!whole) throw new Failure("The connection broke off before the answer was whole.");
}

/** Take one event of the stream: true if it is the last one. */
function take(event, onChunk) {
  const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(5).replace(/^ /, "")).join("\n");
  if (!data) return false; // a comment, by which the server tells that it lives
  if (data === "[DONE]") return true;
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new Failure("The server's answer is not what this page expects.");
  }
  if (chunk.error) throw new Failure(`The answer failed: ${sentence(String(chunk.error.message))}`);
  onChunk(chunk);
  return false;
}
