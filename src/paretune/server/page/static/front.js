// The front that the policy's evaluation reached, over any two objectives, with the profiles of the last answers marked.

import { draw, freshId, make, number } from "./dom.js";

const WIDTH = 340, HEIGHT = 280;
const BOX = { left: 38, right: WIDTH - 12, top: 24, bottom: HEIGHT - 38 };
const TICKS = [0, 0.25, 0.5, 0.75, 1];

export class Front {
  constructor(root, info) {
    this.front = info.front;
    this.marks = [];
    const names = this.front.objectives;
    this.across = this.select("Across", names, 0);
    this.up = this.select("Up", names, Math.min(1, names.length - 1));
    this.plot = make("div", { class: "plot" });
    this.note = make("p", { class: "muted" });
    const table = make("details", {}, make("summary", {}, "As a table"), this.table());
    root.replaceChildren(
      make("div", { class: "line axes" }, this.across.label, this.up.label), this.plot, this.note, table);
    this.draw();
  }

  select(title, names, chosen) {
    const id = freshId("axis");
    const select = make("select", { id }, ...names.map((name) => make("option", { value: name }, name)));
    select.selectedIndex = chosen;
    select.addEventListener("change", () => this.choose(select));
    return { select, label: make("label", { for: id }, `${title} `, select), last: select.value };
  }

  /** The two axes change places rather than show the same objective. */
  choose(select) {
    const [own, other] = select === this.across.select ? [this.across, this.up] : [this.up, this.across];
    if (other.select.value === select.value) other.select.value = own.last;
    for (const each of [own, other]) each.last = each.select.value;
    this.draw();
  }

  /** Mark profiles: a list of `{label, used, obtained}`, each of the two a mapping to values, or null. */
  mark(marks) {
    this.marks = marks;
    this.draw();
  }

  draw() {
    const [a, b] = [this.across.select.value, this.up.select.value];
    const x = (value) => BOX.left + value * (BOX.right - BOX.left);
    const y = (value) => BOX.bottom - value * (BOX.bottom - BOX.top);
    const has = (values) => typeof values?.[a] === "number" && typeof values?.[b] === "number";
    const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img" });
    this.drawAxes(svg, a, b, x, y);
    const points = this.front.points.filter((point) => has(point.values));
    drawStairs(svg, points.map(({ values }) => [values[a], values[b]]), x, y);
    for (const point of points) {
      const dot = draw("circle", { cx: x(point.values[a]), cy: y(point.values[b]), r: 5,
        class: point.on_front ? "dot full" : "dot" });
      dot.append(draw("title", {}, `${point.name}: ${a} ${number(point.values[a])}, ${b} ${number(point.values[b])}`));
      svg.append(dot);
    }
    const said = [];
    for (const { label, used, obtained } of this.marks) {
      const name = label ? ` ${label}` : "";
      if (has(used)) {
        svg.append(draw("path", { d: "M0-8 2.4-2.6 8 0 2.4 2.6 0 8-2.4 2.6-8 0-2.4-2.6Z", class: "here",
          transform: `translate(${x(used[a])} ${y(used[b])})` }));
        if (label) svg.append(draw("text", { x: x(used[a]) + 9, y: y(used[b]) - 5, class: "label" }, label));
        said.push(`profile${name}: ${a} ${number(used[a])}, ${b} ${number(used[b])}`);
      }
      if (has(obtained)) {
        svg.append(draw("path", { d: "M0-6 6 0 0 6-6 0Z", class: "obtained",
          transform: `translate(${x(obtained[a])} ${y(obtained[b])})` }));
        said.push(`obtained${name}: ${a} ${number(obtained[a])}, ${b} ${number(obtained[b])}`);
      }
    }
    svg.setAttribute("aria-label", `${points.length} points of the evaluation over ${a} and ${b}. ${said.join("; ")}`);
    this.note.textContent = said.length
      ? `Star: ${said.join("; ")}.`.replace("Star: obtained", "Diamond: obtained")
      : "Filled points are on the front. The profile of your next answer is marked here.";
    this.plot.replaceChildren(svg);
  }

  drawAxes(svg, a, b, x, y) {
    for (const tick of TICKS) {
      svg.append(
        draw("line", { x1: x(tick), x2: x(tick), y1: BOX.top, y2: BOX.bottom, class: "rule" }),
        draw("line", { x1: BOX.left, x2: BOX.right, y1: y(tick), y2: y(tick), class: "rule" }),
        draw("text", { x: x(tick), y: BOX.bottom + 15, class: "tick", "text-anchor": "middle" }, String(tick)),
        draw("text", { x: BOX.left - 6, y: y(tick) + 4, class: "tick", "text-anchor": "end" }, String(tick)));
    }
    svg.append(
      draw("text", { x: (BOX.left + BOX.right) / 2, y: HEIGHT - 5, class: "axis", "text-anchor": "middle" }, `${a} →`),
      draw("text", { x: 2, y: 12, class: "axis" }, `↑ ${b}`));
  }

  table() {
    const names = this.front.objectives;
    const head = make("tr", {}, ...["Point", ...names, "On the front"].map((each) => make("th", { scope: "col" }, each)));
    const rows = this.front.points.map((point) => make("tr", {}, make("th", { scope: "row" }, point.name),
      ...names.map((name) => make("td", {}, typeof point.values[name] === "number" ? number(point.values[name]) : "–")),
      make("td", {}, point.on_front ? "yes" : "no")));
    return make("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": "Points of the evaluation" },
      make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  }
}

/** The edge of what is reached in the two objectives shown (more is better in both). */
function drawStairs(svg, pairs, x, y) {
  const best = pairs.filter(([p, q]) => !pairs.some(([r, s]) => r >= p && s >= q && (r > p || s > q)));
  if (!best.length) return;
  best.sort((one, two) => one[0] - two[0] || two[1] - one[1]);
  let path = `M${BOX.left},${y(best[0][1])}`;
  best.forEach(([p], at) => { path += `H${x(p)}V${at + 1 < best.length ? y(best[at + 1][1]) : BOX.bottom}`; });
  svg.append(draw("path", { d: path, class: "stairs" }));
}
