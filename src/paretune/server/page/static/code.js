// The present request as something to run elsewhere: curl, or Python with the openai client.

import { address } from "./api.js";
import { announce, byId, freshId, make } from "./dom.js";

/** Fields of paretune's own, which the openai client sends only by `extra_body`. */
const EXTRA = new Set(["profile", "weights", "sense"]);

/** A text for a POSIX shell. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The request as a curl command; `withKey` adds the header of a key in the environment. */
export function asCurl(body, withKey) {
  const lines = [`curl ${quoted(address("v1/chat/completions"))}`, "-H 'Content-Type: application/json'"];
  if (withKey) lines.push('-H "Authorization: Bearer $PARETUNE_API_KEY"');
  lines.push(`-d ${quoted(JSON.stringify(body, null, 2))}`);
  return `${lines.join(" \\\n  ")}\n`;
}

/** A JSON value as a Python literal. A text of JSON is one of Python, once the pairs of UTF-16 are whole characters. */
function literal(value, indent = "    ") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((each) => literal(each, inner))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = `${open}${parts.join(", ")}${close}`;
  if (line.length < 80 && !line.includes("\n")) return line;
  return `${open}\n${parts.map((each) => `${inner}${each},\n`).join("")}${indent}${close}`;
}

/** The request as a Python program. */
export function asPython(body, withKey) {
  const plain = Object.entries(body).filter(([name]) => !EXTRA.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => EXTRA.has(name)));
  const key = withKey ? 'os.environ["PARETUNE_API_KEY"]' : '"none"';
  const lines = [...(withKey ? ["import os", ""] : []), "from openai import OpenAI", "",
    `client = OpenAI(base_url=${literal(address("v1"))}, api_key=${key})`, "answer = client.chat.completions.create("];
  for (const [name, value] of plain) lines.push(`    ${name}=${literal(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${literal(extra)},`);
  lines.push(")", "print(answer.choices[0].message.content)", "print(answer.paretune)");
  return `${lines.join("\n")}\n`;
}

/** The box with the code. `current(at)` gives the body of the request under profile `at`; `withKey()` tells of a key. */
export class Code {
  constructor(root, current, withKey) {
    this.current = current;
    this.withKey = withKey;
    const [language, which] = [freshId("code"), freshId("code")];
    this.language = make("select", { id: language, onchange: () => this.refresh() },
      make("option", { value: "curl" }, "curl"), make("option", { value: "python" }, "Python"));
    this.which = make("select", { id: which, onchange: () => this.refresh() },
      make("option", { value: "0" }, "A"), make("option", { value: "1" }, "B"));
    this.whichLabel = make("label", { for: which, hidden: true }, "Profile ", this.which);
    this.copy = make("button", { type: "button", onclick: () => this.copied() }, "Copy");
    this.pre = make("pre", { tabIndex: 0, role: "group", "aria-label": "The request as code" });
    root.append(make("div", { class: "line axes" }, make("label", { for: language }, "As ", this.language),
      this.whichLabel, this.copy), this.pre);
    byId("code-box").addEventListener("toggle", () => this.refresh());
  }

  /** Offer the second profile too, or not. */
  two(both) {
    this.whichLabel.hidden = !both;
    if (!both) this.which.value = "0";
    this.refresh();
  }

  refresh() {
    if (!byId("code-box").open) return;
    const write = this.language.value === "curl" ? asCurl : asPython;
    this.pre.textContent = write(this.current(Number(this.which.value)), this.withKey());
  }

  async copied() {
    this.refresh();
    await copyText(this.pre.textContent, this.pre, this.copy);
  }
}

/** Copy a text; where the browser does not let a page copy (plain HTTP from another machine), select it instead. */
export async function copyText(text, shown, button) {
  const before = button.textContent;
  let said = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(shown);
    said = "Selected: press Ctrl+C";
  }
  button.textContent = said;
  announce(said);
  setTimeout(() => { button.textContent = before; }, 1600);
}
