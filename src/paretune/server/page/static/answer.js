// One answer: its text while it streams, its Markdown when it is finished, its profile, and how it ended.

import { ask, Failure, stream } from "./api.js";
import { profileOf } from "./bars.js";
import { copyText } from "./code.js";
import { announce, follow, make, setRendered } from "./dom.js";

const ENDS = {
  length: "Cut off: the longest answer, or the model's context, was reached.",
  deadline: "Cut off: the server's time for one answer was up.",
};

/** An answer to `body`. `letter` is "" unless two are compared; `onChange` is called when what is told of it changes. */
export class Answer {
  constructor(info, body, letter, { onChange, onEnd }) {
    this.info = info;
    this.body = body;
    this.letter = letter;
    this.onChange = onChange;
    this.onEnd = onEnd;
    this.reset();
    this.build();
  }

  reset() {
    this.text = "";
    this.told = null;
    this.obtained = null;
    this.ended = "";
    this.failure = null;
    this.pins = this.body.profile ?? null;
    this.running = false;
    this.stopped = false;
  }

  build() {
    this.title = this.letter ? `Answer ${this.letter}` : "Answer";
    this.said = make("div", { class: "said", dir: "auto" });
    this.side = make("div", { class: "side" });
    this.note = make("p", { class: "note" });
    this.copy = make("button", { type: "button", class: "small quiet", hidden: true }, "Copy");
    this.copy.addEventListener("click", () => copyText(this.text, this.said, this.copy));
    this.tools = make("div", { class: "line tools" }, this.copy);
    this.node = make("article", { class: "answer", "aria-label": this.title },
      make("h3", {}, this.title), make("div", { class: "body" }, this.said, this.side), this.note, this.tools);
  }

  /** Ask the server, and show what it says. Never rejects. */
  async run() {
    this.controller = new AbortController();
    this.reset();
    this.running = true;
    this.show();
    this.said.replaceChildren(make("span", { class: "waiting", "aria-hidden": "true" }));
    this.side.replaceChildren();
    try {
      await stream(this.body, (chunk) => this.take(chunk), this.controller.signal);
    } catch (error) {
      if (error.name === "AbortError") this.stopped = true;
      else this.failure = error instanceof Failure ? error : new Failure(`The page failed: ${error.message}.`);
    }
    this.running = false;
    this.paint();
    follow(() => this.show());
    this.onChange();
    this.tell();
    if (!this.failure || this.text) await this.render();
    this.onEnd(this);
  }

  stop() {
    this.controller?.abort();
  }

  take(chunk) {
    const choice = chunk.choices?.[0];
    if (choice?.delta?.content) this.add(choice.delta.content);
    if (choice?.finish_reason) this.ended = choice.finish_reason;
    if (!chunk.paretune) return;
    const { obtained, ...told } = chunk.paretune;
    if (obtained !== undefined) this.obtained = Array.isArray(obtained) ? obtained[0] : obtained;
    if (Object.keys(told).length) this.told = told;
    this.showProfile();
    this.onChange();
  }

  /** Text as it comes is painted once a frame, as text. */
  add(text) {
    this.text += text;
    this.frame ??= requestAnimationFrame(() => this.paint());
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
    if (this.text || !this.running) follow(() => { this.said.textContent = this.text; });
  }

  /** The finished text as Markdown, by the server; the plain text stays if it cannot. */
  async render() {
    const text = this.text;
    if (!text.trim()) return;
    try {
      const { html } = await ask("page/markdown", { body: { text } });
      if (text !== this.text || this.running || typeof html !== "string") return;
      follow(() => setRendered(this.said, html));
      this.said.classList.add("rendered");
      // what scrolls must be reached by keyboard
      for (const node of this.said.querySelectorAll("pre")) if (node.scrollWidth > node.clientWidth) node.tabIndex = 0;
    } catch {
      // too long, or the server is gone: the text is there all the same
    }
  }

  showProfile() {
    const bars = profileOf(this.info, this);
    follow(() => this.side.replaceChildren(...(bars ? [make("h4", { class: "hidden" }, `Profile of ${this.title}`), bars] : [])));
  }

  show() {
    this.node.setAttribute("aria-busy", String(this.running));
    this.said.classList.toggle("streaming", this.running);
    if (this.running) this.said.classList.remove("rendered");
    this.copy.hidden = this.running || !this.text;
    this.note.classList.toggle("wrong", this.failure !== null);
    const empty = !this.running && !this.text && !this.failure && !this.stopped ? "The answer is empty." : "";
    const end = this.stopped ? "Stopped." : ENDS[this.ended] ?? empty;
    this.note.replaceChildren(this.failure ? this.failure.message : this.running ? "" : end);
    if (this.failure?.again) {
      this.note.append(" ", make("button", { type: "button", class: "small", onclick: () => this.run() }, "Try again"));
    }
  }

  /** A finished answer is read out once, not token by token. */
  tell() {
    const said = this.failure ? this.failure.message : this.stopped ? "Stopped." : this.text || "It is empty.";
    announce(`${this.title}: ${said}`);
  }
}
