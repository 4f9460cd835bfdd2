// Making nodes. Text from models, users and the server goes in as text; `setRendered` is the only door for markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with properties (`class` too; `aria-*`, `data-*` and `role` become attributes) and children. */
export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "class") node.className = value;
    else if (name.includes("-") || name === "role" || name === "for") node.setAttribute(name, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An SVG element with attributes and, in it, a text or other elements. */
export function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const byId = (id) => document.getElementById(id);

/** A value in [0, 1] as text. */
export const number = (value) => value.toFixed(2);

/** What a mapping says of an objective, or null: `constructor` is a name like any other, and every object has one. */
export const own = (values, name) => (values && Object.hasOwn(values, name) ? values[name] : null) ?? null;

/** HTML that the server made of Markdown and sanitised (paretune.server.markdown); nothing else may come here. */
export function setRendered(node, html) {
  node.innerHTML = html;
}

/** Change the page; who was at its end stays there, who reads further up is not moved. */
export function follow(change) {
  const root = document.documentElement, near = root.scrollHeight - root.scrollTop - root.clientHeight < 120;
  change();
  if (near) root.scrollTo({ top: root.scrollHeight, behavior: "instant" });
}

let counter = 0;
/** An id that no other element has. */
export const freshId = (stem) => `${stem}-${++counter}`;

/** Tell a screen reader something once; what is seen does not change. */
export function announce(text) {
  byId("status").textContent = text;
}
