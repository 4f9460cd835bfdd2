// The report's only script: fronts over any two objectives, and tables sorted by a column. No library, no request.
// Text from models, data and users comes from JSON and is inserted as text, never as markup.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const LETTER = 6.8; // about how wide a letter of 12 pixels is

  const html = (tag, kind, text) => {
    const node = document.createElement(tag);
    if (kind) node.className = kind;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const draw = (parent, tag, attributes, text) => {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };
  const number = (value) => (value === null ? "–" : value.toFixed(3).replace("-", "−"));
  const tickText = (value) => String(Number(value.toPrecision(6))).replace("-", "−");

  // Round numbers from low to high, about `wanted` of them.
  const ticks = (low, high, wanted) => {
    const rough = (high - low) / wanted;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * power).reduce((a, b) =>
      Math.abs(Math.log(a / rough)) <= Math.abs(Math.log(b / rough)) ? a : b);
    const out = [];
    for (let k = Math.ceil(low / step - 1e-9); k <= Math.floor(high / step + 1e-9); k++) out.push(k * step);
    return out;
  };
  const padded = (values) => {
    const low = Math.min(...values), high = Math.max(...values), pad = (high - low) * 0.12 || 0.05;
    return [low - pad, high + pad];
  };
  const dominates = (a, b) => a.every((v, i) => v >= b[i]) && a.some((v, i) => v > b[i]);
  const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];

  class Front {
    constructor(root) {
      this.data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
      this.plot = root.querySelector(".plot");
      this.detail = root.querySelector(".detail");
      this.form = root.querySelector(".controls");
      this.hidden = new Set();
      this.axes = { across: 0, up: 1, size: -1 };
      this.current = this.data.points.findIndex((point) => point.front && point.large);
      this.form.hidden = this.detail.hidden = false;
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.form.addEventListener("change", (event) => this.choose(event.target));
      for (const item of root.querySelectorAll(".legend li")) this.addCheckbox(item);
      this.width = 0;
      new ResizeObserver(() => {
        if (Math.abs(this.plot.clientWidth - this.width) > 1) this.draw();
      }).observe(this.plot);
      this.draw();
      this.tell(Math.max(this.current, 0));
    }

    // Another objective for an axis; the two axes change places rather than show the same one.
    choose(select) {
      if (!(select.name in this.axes)) return;
      const chosen = this.data.objectives.indexOf(select.value);
      const other = { across: "up", up: "across" }[select.name];
      if (other && this.axes[other] === chosen) {
        this.axes[other] = this.axes[select.name];
        this.form.elements[other].value = this.data.objectives[this.axes[other]];
      }
      this.axes[select.name] = chosen;
      this.draw();
    }

    addCheckbox(item) {
      const box = html("input"), label = html("label");
      box.type = "checkbox";
      box.checked = true;
      label.append(box, ...item.childNodes);
      item.append(label);
      box.addEventListener("change", () => {
        if (box.checked) this.hidden.delete(Number(item.dataset.policy));
        else this.hidden.add(Number(item.dataset.policy));
        this.draw();
      });
    }

    // The points that can be drawn, with their places in pixels.
    laidOut(box) {
      const { across, up, size } = this.axes;
      const wanted = size < 0 ? [across, up] : [across, up, size];
      const shown = this.data.points
        .map((point, index) => ({ point, index }))
        .filter(({ point }) => !this.hidden.has(point.policy) && wanted.every((i) => point.values[i] !== null
          && point.values[i] !== undefined));
      if (!shown.length) return { shown };
      const xs = padded(shown.map(({ point }) => point.values[across]));
      const ys = padded(shown.map(({ point }) => point.values[up]));
      const x = (value) => box.left + ((value - xs[0]) / (xs[1] - xs[0])) * (box.right - box.left);
      const y = (value) => box.bottom - ((value - ys[0]) / (ys[1] - ys[0])) * (box.bottom - box.top);
      const thirds = size < 0 ? [] : shown.map(({ point }) => point.values[size]);
      const low = Math.min(...thirds), high = Math.max(...thirds);
      for (const each of shown) {
        each.pair = [each.point.values[across], each.point.values[up]];
        each.x = x(each.pair[0]);
        each.y = y(each.pair[1]);
        each.radius = size < 0 ? (each.point.large ? 7.5 : 5)
          : 4 + (high > low ? (9 * (each.point.values[size] - low)) / (high - low) : 3);
      }
      return { shown, xs, ys, x, y, low, high };
    }

    draw() {
      const focused = this.plot.contains(document.activeElement);
      this.width = this.plot.clientWidth;
      const width = Math.max(this.width, 260), height = Math.round(Math.min(Math.max(width * 0.72, 280), 470));
      const box = { left: 46, right: width - 22, top: 26, bottom: height - 44 };
      const svg = document.createElementNS(SVG, "svg");
      svg.setAttribute("class", "chart live");
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      const laid = this.laidOut(box);
      this.shown = laid.shown;
      if (!this.shown.length) {
        this.plot.replaceChildren(html("p", "muted", "Nothing to draw: no point with a value is chosen."));
        return;
      }
      this.drawAxes(svg, box, laid);
      this.drawStairs(svg, box);
      if (!this.shown.some(({ index }) => index === this.current)) this.current = this.shown[0].index;
      this.drawLabels(svg, box);
      this.drawPoints(svg);
      this.plot.replaceChildren(svg);
      if (focused) this.focus(this.current);
    }

    drawAxes(svg, box, { xs, ys, x, y, low, high }) {
      const names = this.data.objectives, { across, up, size } = this.axes;
      const axes = draw(svg, "g", { "aria-hidden": "true" });
      for (const tick of ticks(xs[0], xs[1], box.right > 420 ? 6 : 4)) {
        draw(axes, "line", { x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom, class: "rule" });
        draw(axes, "text", { x: x(tick), y: box.bottom + 16, class: "tick", "text-anchor": "middle" }, tickText(tick));
      }
      for (const tick of ticks(ys[0], ys[1], 5)) {
        draw(axes, "line", { x1: box.left, x2: box.right, y1: y(tick), y2: y(tick), class: "rule" });
        draw(axes, "text", { x: box.left - 7, y: y(tick) + 4, class: "tick", "text-anchor": "end" }, tickText(tick));
      }
      const middle = (box.left + box.right) / 2;
      draw(axes, "text", { x: middle, y: box.bottom + 36, class: "axis", "text-anchor": "middle" }, `${names[across]} →`);
      draw(axes, "text", { x: 2, y: box.top - 10, class: "axis" }, `↑ ${names[up]}`);
      if (size >= 0) {
        const said = `size: ${names[size]}, ${number(low)} to ${number(high)}`;
        draw(axes, "text", { x: box.right, y: box.top - 10, class: "tick", "text-anchor": "end" }, said);
      }
    }

    // The edge of what is reached in the two objectives shown.
    drawStairs(svg, box) {
      const best = this.shown.filter((each) => !this.shown.some((other) => dominates(other.pair, each.pair)));
      best.sort((a, b) => a.x - b.x || b.y - a.y);
      let path = `M${box.left},${best[0].y}`;
      best.forEach((each, i) => { path += `H${each.x}V${i + 1 < best.length ? best[i + 1].y : box.bottom}`; });
      draw(svg, "path", { d: path, class: "stairs", "aria-hidden": "true" });
    }

    // Names beside the large points, where there is room for them.
    drawLabels(svg, box) {
      const layer = draw(svg, "g", { "aria-hidden": "true" });
      const taken = this.shown.map(({ x, y, radius: r }) => [x - r, y - r, x + r, y + r]);
      const large = this.shown.filter(({ point }) => point.large);
      if (large.length > 16) return;
      const several = Object.keys(this.data.policies).length > 1;
      for (const { point, x, y, radius } of large) {
        const full = several ? this.data.policies[point.policy].name : point.name;
        const name = full.length > 24 ? `${full.slice(0, 23)}…` : full;
        const wide = name.length * LETTER, gap = radius + 7;
        const spots = [[x + gap, y], [x - gap - wide, y], [x - wide / 2, y - gap - 7], [x - wide / 2, y + gap + 7],
          [x + gap - 2, y - 13], [x + gap - 2, y + 13], [x - gap - wide + 2, y - 13], [x - gap - wide + 2, y + 13]];
        for (const [left, at] of spots) {
          const space = [left, at - 8, left + wide, at + 8];
          const inside = space[0] >= box.left && space[2] <= box.right + 18 && space[1] >= box.top
            && space[3] <= box.bottom;
          if (!inside || taken.some((other) => overlap(space, other))) continue;
          taken.push(space);
          draw(layer, "text", { x: left, y: at + 4, class: "label" }, name);
          break;
        }
      }
    }

    // One stop of the Tab key; arrows move between points, by their place in the chart.
    drawPoints(svg) {
      const group = draw(svg, "g", { role: "listbox", "aria-label": `${this.data.title}: points` });
      this.nodes = new Map();
      for (const { point, index, x, y, radius } of this.shown) {
        const { colour, shape } = this.data.policies[point.policy];
        const values = this.data.objectives.map((name, i) => `${name} ${number(point.values[i] ?? null)}`).join(", ");
        const node = draw(group, "g", {
          role: "option", class: "point", tabindex: index === this.current ? 0 : -1,
          "aria-selected": String(index === this.current),
          "aria-label": `${point.full}: ${values}${point.front ? ", on the front" : ""}`,
          transform: `translate(${x} ${y})`,
        });
        draw(node, "circle", { r: Math.max(radius + 5, 12), class: "ring" });
        draw(node, "use", { href: `#shape-${shape}`, class: `mark ${colour} ${point.front ? "full" : ""}`,
          transform: `scale(${radius})` });
        node.addEventListener("mouseenter", () => this.tell(index));
        node.addEventListener("click", () => this.focus(index));
        node.addEventListener("focus", () => this.tell(index));
        node.addEventListener("keydown", (event) => this.move(event, index));
        this.nodes.set(index, node);
      }
    }

    move(event, index) {
      const axis = { ArrowRight: "x", ArrowLeft: "x", ArrowUp: "y", ArrowDown: "y", Home: "x", End: "x" }[event.key];
      if (!axis || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const other = axis === "x" ? "y" : "x";
      const order = [...this.shown].sort((a, b) => a[axis] - b[axis] || a[other] - b[other] || a.index - b.index);
      const at = order.findIndex((each) => each.index === index);
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const next = event.key === "Home" ? 0 : event.key === "End" ? order.length - 1
        : Math.min(Math.max(at + step, 0), order.length - 1);
      this.focus(order[next].index);
    }

    focus(index) {
      this.nodes.get(index).focus();
      this.tell(index);
    }

    // The chosen point in words, beside the chart.
    tell(index) {
      const point = this.data.points[index];
      for (const each of [this.current, index]) {
        const node = this.nodes?.get(each);
        node?.setAttribute("aria-selected", String(each === index));
        node?.setAttribute("tabindex", each === index ? 0 : -1);
      }
      this.current = index;
      const heading = html("p", "headline", point.full);
      const values = html("dl");
      this.data.objectives.forEach((name, i) => {
        const pair = html("div");
        pair.append(html("dt", "", name), html("dd", "", number(point.values[i] ?? null)));
        values.append(pair);
      });
      const parts = [heading];
      if (point.about) parts.push(html("p", "muted", point.about));
      parts.push(values, html("p", "", this.standing(point)));
      if (point.answer) {
        parts.push(html("p", "role", "One of its answers"));
        if (point.prompt) parts.push(this.quote("said asked", point.prompt));
        parts.push(this.quote("said", point.answer));
      }
      this.detail.replaceChildren(...parts);
      // what scrolls must be reached by keyboard
      for (const node of this.detail.querySelectorAll(".said")) {
        if (node.scrollHeight > node.clientHeight) node.tabIndex = 0;
      }
    }

    quote(kind, text) {
      const node = html("div", kind, text);
      node.dir = "auto";
      return node;
    }

    standing(point) {
      if (point.front) return "On the front.";
      const better = this.data.points.filter((other) => other.front && dominates(other.values, point.values));
      const names = better.slice(0, 3).map((other) => other.full).join(", ");
      const more = better.length > 3 ? ` and ${better.length - 3} more` : "";
      return better.length ? `Not on the front: beaten by ${names}${more}.` : "Not on the front.";
    }
  }

  // Buttons in a table's header sort its rows, by number where cells have one; cells without one come last, ties keep their order.
  const sortable = (table) => {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = html("button", "sort", head.textContent);
      button.type = "button";
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const numeric = [...body.rows].some((row) => row.cells[column].dataset.sort !== undefined);
        const down = head.ariaSort ? head.ariaSort === "ascending" : numeric;
        for (const each of heads) each.removeAttribute("aria-sort");
        head.ariaSort = down ? "descending" : "ascending";
        const key = (row) => row.cells[column].dataset.sort;
        const text = (row) => row.cells[column].textContent;
        const known = [...body.rows].filter((row) => !numeric || key(row) !== undefined);
        const unknown = [...body.rows].filter((row) => !known.includes(row));
        const order = numeric ? (a, b) => key(a) - key(b) : (a, b) => text(a).localeCompare(text(b));
        known.sort((a, b) => (down ? order(b, a) : order(a, b)));
        body.append(...known, ...unknown);
      });
    });
  };

  for (const root of document.querySelectorAll(".front")) new Front(root);
  for (const table of document.querySelectorAll("table.sortable")) sortable(table);
})();
