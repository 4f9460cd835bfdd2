// The conversation: turns of a message and its one or two answers. It lives in this tab's memory and nowhere else.

import { Answer } from "./answer.js";
import { byId, make } from "./dom.js";

const LETTERS = ["A", "B"];

/** `makeBody(messages, at)` gives the request under profile `at`; `onChange` is called when anything has changed. */
export class Chat {
  constructor(info, makeBody, { onChange, onEdit }) {
    this.info = info;
    this.makeBody = makeBody;
    this.onChange = onChange;
    this.onEdit = onEdit;
    this.turns = [];
  }

  get last() {
    return this.turns.at(-1) ?? null;
  }

  get running() {
    return this.last !== null && this.last.answers.some((answer) => answer.running);
  }

  /** The messages before turn `end`, as profile `at` has answered them; a turn without an answer is left out. */
  history(at, end = this.turns.length) {
    const out = [];
    for (const { prompt, answers } of this.turns.slice(0, end)) {
      const answer = answers[at] ?? answers[0];
      if (!answer.text) continue;
      out.push({ role: "user", content: prompt }, { role: "assistant", content: answer.text });
    }
    return out;
  }

  /** The conversation to be answered when `prompt` comes next; without one, the last turn's own. */
  messages(at, prompt) {
    if (prompt) return [...this.history(at), { role: "user", content: prompt }];
    if (!this.last) return [{ role: "user", content: "Hello!" }];
    return [...this.history(at, this.turns.length - 1), { role: "user", content: this.last.prompt }];
  }

  send(prompt, count) {
    const turn = { prompt, answers: [] };
    this.ask(turn, count);
    turn.user = make("div", { class: "user" }, make("h3", {}, "You"), make("p", { class: "said", dir: "auto" }, prompt));
    turn.answersNode = make("div", { class: "answers" }, ...turn.answers.map(({ node }) => node));
    turn.tools = make("div", { class: "line tools" },
      make("button", { type: "button", class: "small quiet", onclick: () => this.onEdit(prompt) }, "Edit"),
      make("button", { type: "button", class: "small quiet", onclick: () => this.regenerate() }, "Answer again"));
    turn.node = make("section", { class: "turn", "aria-label": `Message ${this.turns.length + 1}` },
      turn.user, turn.answersNode, turn.tools);
    this.turns.push(turn);
    byId("turns").append(turn.node);
    this.start(turn);
    turn.node.scrollIntoView({ block: "start" });
  }

  /** New answers for a turn under the present profiles. */
  ask(turn, count) {
    const end = this.turns.indexOf(turn) < 0 ? this.turns.length : this.turns.indexOf(turn);
    turn.answers = LETTERS.slice(0, count).map((letter, at) => {
      const messages = [...this.history(at, end), { role: "user", content: turn.prompt }];
      const hooks = { onChange: () => this.changed(), onEnd: () => this.changed() };
      return new Answer(this.info, this.makeBody(messages, at), count > 1 ? letter : "", hooks);
    });
  }

  start(turn) {
    turn.answersNode.classList.toggle("two", turn.answers.length > 1);
    for (const answer of turn.answers) answer.run();
    this.changed();
  }

  changed() {
    for (const turn of this.turns) turn.tools.hidden = turn !== this.last || this.running;
    this.onChange();
  }

  regenerate(count = this.count()) {
    if (!this.last || this.running) return;
    this.ask(this.last, count);
    this.last.answersNode.replaceChildren(...this.last.answers.map(({ node }) => node));
    this.start(this.last);
  }

  /** How many answers a message gets; set by the page. */
  count() {
    return 1;
  }

  /** Answers that failed for want of a key are asked for again. */
  retryRefused() {
    for (const answer of this.last?.answers ?? []) {
      if (answer.failure?.status === 401) answer.run();
    }
    this.changed();
  }

  stop() {
    for (const answer of this.last?.answers ?? []) answer.stop();
  }

  /** Take the last turn out, for its message to be written anew. */
  dropLast() {
    this.stop();
    this.turns.pop()?.node.remove();
    this.changed();
  }

  clear() {
    this.stop();
    this.turns = [];
    byId("turns").replaceChildren();
    this.changed();
  }
}
