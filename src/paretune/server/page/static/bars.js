// The profile of an answer: what was sensed with its interval, what was pinned, what was used, what was obtained.

import { draw, make, number, own } from "./dom.js";

const place = (value) => `${Math.min(1, Math.max(0, value)) * 100}%`;

/** A shape of about ten pixels whose middle is at `value` of the bar's width. */
function marker(value, path, kind) {
  return draw("svg", { x: place(value), y: 9, class: "marker" }, draw("path", { d: path, class: kind }));
}

/** One objective's bar: sensed as a fill with a whisker, used as a line across, obtained as a diamond. */
function bar({ sensed, interval, used, obtained }) {
  const svg = draw("svg", { class: "bar", height: 18, "aria-hidden": "true" });
  svg.append(draw("rect", { x: 0, y: 5, width: "100%", height: 8, rx: 4, class: "track" }));
  const filled = sensed ?? used;
  if (filled !== null) svg.append(draw("rect", { x: 0, y: 5, width: place(filled), height: 8, rx: 4, class: "fill" }));
  if (interval) {
    const [low, high] = interval;
    svg.append(draw("line", { x1: place(low), x2: place(high), y1: 9, y2: 9, class: "whisker" }));
    for (const end of [low, high]) {
      svg.append(draw("line", { x1: place(end), x2: place(end), y1: 6, y2: 12, class: "whisker" }));
    }
  }
  if (used !== null) svg.append(draw("line", { x1: place(used), x2: place(used), y1: 0, y2: 18, class: "used" }));
  if (obtained !== null) svg.append(marker(obtained, "M0-6 6 0 0 6-6 0Z", "obtained"));
  return svg;
}

/** What is known of one objective of an answer. */
function known(name, answer) {
  const { sensed, used, interval, weights } = answer.told ?? {};
  return {
    sensed: own(sensed, name),
    interval: own(interval, name),
    used: own(used, name) ?? own(weights, name),
    obtained: own(answer.obtained, name)?.value ?? null,
    pinned: own(answer.pins, name) !== null,
    weighed: !used && Boolean(weights),
  };
}

/** The same in words, which is all that a screen reader gets. */
function words(found, answer) {
  const parts = [];
  if (found.sensed !== null) {
    const reach = found.interval ? ` (${found.interval.map(number).join(" to ")})` : "";
    parts.push(`sensed ${number(found.sensed)}${reach}`);
  }
  if (found.used !== null) parts.push(`${found.weighed ? "weight" : "used"} ${number(found.used)}`);
  if (found.obtained !== null) parts.push(`obtained ${number(found.obtained)}`);
  else if (answer.obtained) parts.push("obtained: not scored");
  return parts.join(" · ");
}

/** The bars of an answer, or null where there is nothing to tell. */
export function profileOf(info, answer) {
  const rows = info.data.map(({ name }) => ({ name, found: known(name, answer) }));
  if (!rows.some(({ found }) => [found.sensed, found.used, found.obtained].some((each) => each !== null))) return null;
  const list = make("ul", { class: "bars" });
  for (const { name, found } of rows) {
    const head = make("div", { class: "line" }, make("span", { class: "name" }, name));
    if (found.pinned) head.append(make("span", { class: "badge" }, "pinned"));
    if (found.used !== null) head.append(make("span", { class: "figure", "aria-hidden": "true" }, number(found.used)));
    list.append(make("li", {}, head, bar(found), make("p", { class: "muted" }, words(found, answer))));
  }
  return list;
}

/** What the signs of the bars mean, drawn as they are in the bars. */
export function legend(info) {
  const sign = (text, ...nodes) => make("li", {}, draw("svg", { width: 22, height: 18, "aria-hidden": "true" }, ...nodes), text);
  const signs = [];
  if (info.senses) {
    signs.push(
      sign("sensed, with its 80% interval", draw("rect", { x: 0, y: 5, width: 16, height: 8, rx: 4, class: "fill" }),
        draw("line", { x1: 10, x2: 22, y1: 9, y2: 9, class: "whisker" }),
        draw("line", { x1: 22, x2: 22, y1: 6, y2: 12, class: "whisker" })));
  }
  if (info.senses || info.takes_profile || info.takes_weights) {
    signs.push(sign("used", draw("line", { x1: 11, x2: 11, y1: 0, y2: 18, class: "used" })));
  }
  signs.push(sign("obtained", draw("path", { d: "M11 3 17 9 11 15 5 9Z", class: "obtained" })));
  return make("ul", { class: "legend" }, ...signs);
}
