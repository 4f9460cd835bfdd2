// What is asked for: sliders that pin objectives, or preference weights for a policy that takes weights instead.

import { byId, freshId, make, number, own } from "./dom.js";

/** How a policy can be guided, from `/v1/objectives`: "pins", "weights" or "nothing". */
export function wayOf(info) {
  if (info.takes_weights && (!info.takes_profile || info.weights_rule !== "profile")) return "weights";
  return info.takes_profile ? "pins" : "nothing";
}

/** The level 0..4 that a value falls in, as paretune.profile.level_of. */
const levelOf = (value) => Math.min(4, Math.floor(value * 5));

/** Weights that sum to one from slider positions, in steps of 1/10000; equal ones where all stand at 0. */
export function shares(positions) {
  const total = positions.reduce((sum, each) => sum + each, 0);
  const exact = positions.map((each) => (total > 0 ? each / total : 1 / positions.length));
  const steps = exact.map((each) => Math.round(each * 10000));
  steps[exact.indexOf(Math.max(...exact))] += 10000 - steps.reduce((sum, each) => sum + each, 0);
  return steps.map((each) => each / 10000);
}

/** A group of sliders. `fields()` is what it adds to a request; `onChange` is called when that may have changed. */
export class Editor {
  constructor(info, letter, onChange) {
    this.info = info;
    this.way = wayOf(info);
    this.pins = new Map();
    this.sensed = null;
    this.weighing = false;
    this.onChange = onChange;
    this.rows = new Map();
    this.title = make("h2", {}, "Profile");
    this.node = make("div", { class: "box editor", role: "group", "aria-label": "Profile" }, this.title);
    this.letter = letter;
    if (this.way === "nothing") {
      this.node.append(make("p", { class: "muted" }, "This policy takes no profile: it answers in its one way."));
      return;
    }
    const hint = this.way === "pins" ? this.pinHint() : "How much each objective counts.";
    this.node.append(make("p", { class: "muted" }, hint));
    for (const objective of info.data) this.node.append(this.row(objective));
    this.node.append(this.foot());
    this.refresh();
  }

  pinHint() {
    return this.info.senses
      ? "Each value is sensed from your message. Move a slider to pin it."
      : "Move a slider to ask for a value.";
  }

  row(objective) {
    const { name, direction } = objective, id = freshId("slider");
    const slider = make("input", {
      type: "range", id, min: 0, max: this.way === "pins" ? 1 : 100, step: this.way === "pins" ? 0.01 : 1,
      autocomplete: "off",
    });
    slider.value = this.way === "pins" ? objective.mean ?? 0.5 : 50;
    slider.addEventListener("input", () => this.move(name, Number(slider.value)));
    const parts = {
      slider,
      objective,
      value: make("output", { for: id }),
      state: make("span", { class: "state" }),
      phrase: make("p", { class: "phrase muted" }),
      pin: this.way === "pins" ? make("button", { type: "button", class: "small", onclick: () => this.toggle(name) }) : null,
    };
    this.rows.set(name, parts);
    const label = make("label", { for: id }, name);
    if (direction === "minimise") label.append(make("span", { class: "muted" }, " (less is better)"));
    return make("div", { class: "slider" },
      make("div", { class: "line" }, label, parts.state, parts.value),
      make("div", { class: "line" }, slider, parts.pin), parts.phrase);
  }

  foot() {
    const foot = make("div", { class: "line foot" });
    if (this.way === "pins" && this.info.senses) {
      this.sense = make("input", { type: "checkbox", checked: true, onchange: () => this.refresh() });
      foot.append(make("label", { class: "check" }, this.sense, " Sense the others"));
    }
    this.release = make("button", { type: "button", class: "quiet", onclick: () => this.releaseAll() },
      this.way === "pins" ? "Release all" : "Reset");
    foot.append(this.release);
    return foot;
  }

  /** A letter in the title when there are two of them. */
  name(both) {
    const title = both ? `Profile ${this.letter}` : "Profile";
    this.title.textContent = title;
    this.node.setAttribute("aria-label", title);
  }

  move(name, value) {
    if (this.way === "pins") this.pins.set(name, value);
    else this.weighing = true;
    this.refresh();
  }

  toggle(name) {
    if (this.pins.has(name)) this.pins.delete(name);
    else this.pins.set(name, Number(this.rows.get(name).slider.value));
    this.refresh();
  }

  releaseAll() {
    this.pins.clear();
    this.weighing = false;
    for (const { slider } of this.rows.values()) if (this.way === "weights") slider.value = 50;
    this.refresh();
  }

  /** Put the sliders that are not pinned where the values were sensed. */
  showSensed(profile) {
    if (this.way !== "pins" || !profile) return;
    this.sensed = profile;
    this.refresh();
  }

  copyFrom(other) {
    this.pins = new Map(other.pins);
    this.weighing = other.weighing;
    this.sensed = other.sensed;
    for (const [name, { slider }] of this.rows) slider.value = other.rows.get(name).slider.value;
    this.refresh();
  }

  refresh() {
    if (this.way === "pins") this.refreshPins();
    else if (this.way === "weights") this.refreshWeights();
    this.onChange();
  }

  refreshPins() {
    const senses = this.info.senses && this.sense.checked;
    for (const [name, row] of this.rows) {
      const pinned = this.pins.has(name), sensed = senses ? own(this.sensed, name) : null, known = pinned || sensed !== null;
      if (pinned) row.slider.value = this.pins.get(name);
      else if (known) row.slider.value = sensed;
      const value = Number(row.slider.value);
      const state = pinned ? "pinned" : !senses ? "not asked for" : known ? "sensed" : "to be sensed";
      row.value.textContent = known ? number(value) : "–";
      row.state.textContent = state;
      row.slider.setAttribute("aria-valuetext", known ? `${number(value)}, ${state}` : state);
      row.slider.classList.toggle("free", !pinned);
      row.pin.textContent = pinned ? "Release" : "Pin";
      row.pin.setAttribute("aria-label", `${pinned ? "Release" : "Pin"} ${name}`);
      const phrase = known ? row.objective.phrases?.[levelOf(value)] : "";
      row.phrase.textContent = phrase ? `“${phrase}”` : "";
    }
    this.release.disabled = this.pins.size === 0;
  }

  refreshWeights() {
    const rows = [...this.rows.values()];
    const found = shares(rows.map(({ slider }) => Number(slider.value)));
    rows.forEach((row, at) => {
      const said = `${Math.round(found[at] * 100)}%`, state = this.weighing ? "" : this.freeState();
      row.value.textContent = this.weighing ? said : "";
      row.state.textContent = state;
      row.slider.setAttribute("aria-valuetext", this.weighing ? `${said} of the weight` : state);
      row.slider.classList.toggle("free", !this.weighing);
    });
    this.release.disabled = !this.weighing;
  }

  freeState() {
    return this.info.senses ? "to be sensed" : "equal";
  }

  /** The request's own fields: `profile`, `weights`, `sense`; none where nothing was set. */
  fields() {
    if (this.way === "weights") return this.weighing ? { weights: this.weights() } : {};
    const out = this.pins.size ? { profile: Object.fromEntries(this.pins) } : {};
    if (this.sense && !this.sense.checked) out.sense = false;
    return out;
  }

  weights() {
    const names = [...this.rows.keys()];
    const found = shares(names.map((name) => Number(this.rows.get(name).slider.value)));
    return Object.fromEntries(names.map((name, at) => [name, found[at]]));
  }
}

/** Put editors into the panel, the second one only when two answers are compared. */
export function placeEditors(editors, both) {
  byId("editors").replaceChildren(...(both ? editors : editors.slice(0, 1)).map((each) => each.node));
  for (const each of editors) each.name(both);
}
