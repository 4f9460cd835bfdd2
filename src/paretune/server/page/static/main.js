// The page: reads what the policy is, and joins the conversation, the profile editors, the front and the code.

import { ask, Failure, hasKey, setKey } from "./api.js";
import { legend } from "./bars.js";
import { Chat } from "./chat.js";
import { Code } from "./code.js";
import { announce, byId, freshId, make } from "./dom.js";
import { Editor, placeEditors, wayOf } from "./editor.js";
import { Front } from "./front.js";

const draft = byId("draft"), compare = byId("compare"), panelButton = byId("open-panel");
let info = null, chat = null, code = null, front = null, editors = [], editing = false;

const count = () => (compare.checked ? 2 : 1);

/** The body of a request for these messages under profile `at`, as it can be copied. */
function bodyOf(messages, at) {
  const system = byId("system").value.trim(), longest = byId("longest").value;
  const body = { model: info.model, messages: system ? [{ role: "system", content: system }, ...messages] : messages };
  body.temperature = Number(byId("temperature").value);
  if (longest) body.max_tokens = Number(longest); // what is out of range, the server refuses in words
  return { ...body, ...editors[at].fields() };
}

/** The same as it is sent: with a seed of its own, so that the same question can have another answer. */
const sentBody = (messages, at) => ({ ...bodyOf(messages, at), seed: crypto.getRandomValues(new Uint32Array(1))[0] });

/** Everything that depends on what is running, typed or pinned. */
function refresh() {
  if (!chat) return;
  const { running, last } = chat;
  byId("welcome").hidden = last !== null;
  byId("clear").disabled = last === null;
  byId("editing").hidden = !editing;
  const stop = byId("stop"), focused = document.activeElement === stop;
  byId("send").hidden = running;
  stop.hidden = !running;
  byId("sense").hidden = running || !info.senses || wayOf(info) !== "pins";
  if (focused && !running) draft.focus();
  const answers = last?.answers ?? [];
  answers.forEach((answer, at) => {
    if (!answer.told || answer.shown === answer.told) return;
    answer.shown = answer.told;
    editors[at]?.showSensed(answer.told.sensed && { ...answer.told.sensed, ...(answer.told.used ?? {}) });
  });
  front?.mark(answers.map(({ letter, told, obtained }) => ({
    label: letter,
    used: told?.used ?? told?.weights ?? null,
    obtained: obtained && Object.fromEntries(Object.entries(obtained).map(([name, each]) => [name, each?.value])),
  })));
  code?.refresh();
}

function send() {
  const text = draft.value.trim();
  if (!chat || chat.running) return;
  if (!text) {
    draft.focus();
    return;
  }
  if (editing) chat.dropLast();
  editing = false;
  draft.value = "";
  grow();
  announce("Answering.");
  chat.send(text, count());
}

/** The message field is as high as its text, up to a point. */
function grow() {
  draft.style.height = "auto";
  draft.style.height = `${Math.min(draft.scrollHeight + 2, 220)}px`;
}

function edit(prompt) {
  editing = true;
  draft.value = prompt;
  grow();
  draft.focus();
  refresh();
}

/** What would be sensed from the message that is being written, without an answer. */
async function senseDraft() {
  const prompt = draft.value.trim(), button = byId("sense");
  if (!prompt) {
    announce("Write a message first.");
    draft.focus();
    return;
  }
  button.disabled = true;
  try {
    for (const [at, editor] of editors.slice(0, count()).entries()) {
      const { messages } = bodyOf(chat.messages(at, prompt), at), pins = editor.fields().profile;
      const found = await ask("v1/sense", { body: { model: info.model, messages, ...(pins ? { profile: pins } : {}) } });
      editor.showSensed(found.data[0].profile);
    }
    clearNotices("sense");
    announce("Sensed: the sliders show it.");
    openPanel(true);
  } catch (error) {
    notice("sense", error.message);
    if (error.status === 401) askForKey(error.message);
  } finally {
    button.disabled = false;
  }
}

/** A message at the top of the conversation, one of a kind; `more` are nodes after its words. */
function notice(kind, words, ...more) {
  clearNotices(kind);
  byId("notices").append(make("div", { class: "notice", role: "alert", "data-kind": kind }, make("p", {}, words), ...more));
}

function clearNotices(kind) {
  byId("notices").querySelector(`[data-kind="${kind}"]`)?.remove();
}

function askForKey(words) {
  if (byId("notices").querySelector("[data-kind=key]") && !hasKey()) return;
  const id = freshId("key");
  const field = make("input", { type: "password", id, autocomplete: "off", spellcheck: false, required: true });
  const form = make("form", { class: "line" }, make("label", { for: id }, "API key"), field,
    make("button", { type: "submit", class: "main" }, "Use it"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(field.value.trim());
    clearNotices("key");
    begin();
  });
  notice("key", `${words} It is kept in this tab's memory only.`, form);
  field.focus();
}

function openPanel(open) {
  document.body.classList.toggle("panel-open", open);
  panelButton.setAttribute("aria-expanded", String(open));
}

/** Read what the policy is; with it the page is whole. Said in words where it cannot be. */
async function begin() {
  let found;
  try {
    found = await ask("v1/objectives");
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (error.status === 401) askForKey(error.message);
    else {
      notice("start", error.message,
        make("button", { type: "button", class: "small", onclick: () => begin() }, "Try again"));
    }
    return;
  }
  clearNotices("start");
  if (info) chat.retryRefused();
  else build(found);
  if (matchMedia("(pointer: fine)").matches) draft.focus({ preventScroll: true }); // no keyboard pops up on a phone
}

function build(found) {
  info = found;
  document.title = `${info.model} · paretune`;
  byId("about").textContent = `${info.model}, trained by ${info.method}`;
  editors = ["A", "B"].map((letter) => new Editor(info, letter, refresh));
  placeEditors(editors, compare.checked);
  chat = new Chat(info, sentBody, { onChange: refresh, onEdit: edit });
  chat.count = count;
  code = new Code(byId("code"), (at) => bodyOf(chat.messages(at, draft.value.trim()), at), hasKey);
  code.two(compare.checked);
  if (info.front?.points.length) {
    front = new Front(byId("front"), info);
    byId("front-box").hidden = false;
  }
  byId("welcome-text").textContent = welcome();
  byId("welcome").append(legend(info));
  byId("send").disabled = false;
  refresh();
}

function welcome() {
  const names = info.data.map(({ name }) => name), said = names.length > 1
    ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names.join("");
  if (info.senses) {
    return `This policy reads from your message how much of ${said} fits it, and answers accordingly. Pin what you want `
      + "otherwise. Beside each answer you see what was sensed, used and obtained.";
  }
  if (wayOf(info) === "weights") return `This policy answers by how much you let ${said} count.`;
  if (wayOf(info) === "pins") return `This policy answers by the values of ${said} that you ask for.`;
  return `This policy was trained for ${said}, and answers in its one way.`;
}

function wire() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  draft.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  draft.addEventListener("input", () => {
    grow();
    code?.refresh();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chat?.running) chat.stop();
  });
  byId("stop").addEventListener("click", () => chat?.stop());
  byId("sense").addEventListener("click", senseDraft);
  byId("clear").addEventListener("click", () => {
    editing = false;
    chat.clear();
    announce("The conversation is cleared.");
    draft.focus();
  });
  byId("cancel-edit").addEventListener("click", () => {
    editing = false;
    draft.value = "";
    refresh();
    draft.focus();
  });
  compare.addEventListener("change", () => {
    if (compare.checked && editors.length) editors[1].copyFrom(editors[0]);
    if (editors.length) placeEditors(editors, compare.checked);
    if (compare.checked) openPanel(true);
    code?.two(compare.checked);
  });
  panelButton.addEventListener("click", () => openPanel(!document.body.classList.contains("panel-open")));
  byId("settings").addEventListener("submit", (event) => event.preventDefault());
  byId("settings").addEventListener("input", () => {
    byId("temperature-said").textContent = Number(byId("temperature").value).toFixed(1);
    code?.refresh();
  });
  const theme = byId("theme");
  theme.value = document.documentElement.dataset.theme ?? "system";
  theme.addEventListener("change", () => chooseTheme(theme.value));
}

function chooseTheme(value) {
  const root = document.documentElement;
  if (value === "system") delete root.dataset.theme;
  else root.dataset.theme = value;
  try {
    if (value === "system") localStorage.removeItem("paretune-theme");
    else localStorage.setItem("paretune-theme", value);
  } catch {
    // storage is switched off: the choice lasts as long as the page
  }
}

wire();
begin();
