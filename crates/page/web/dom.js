// SPDX-License-Identifier: Apache-2.0
// Elements and canvases. Foreign names become text nodes and canvas text, never markup.

/** An element with attributes, listeners (`onclick`) and children; strings become text. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat().filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Gives a canvas the size of its box in device pixels, and returns its context in CSS pixels. */
export function sizedContext(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== high) canvas.height = high;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

export const CANVAS_FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

/** Draws a text that ends with an ellipsis where it is too wide. Long names are not measured as a whole. */
export function fitText(context, text, x, y, width) {
  if (width < 14) return;
  const most = Math.floor(width / 3);
  let shown = text.length > most ? text.slice(0, most) : text;
  if (shown.length === text.length && context.measureText(shown).width <= width) {
    context.fillText(shown, x, y);
    return;
  }
  let [low, high] = [0, shown.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${shown.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  if (low > 0) context.fillText(`${shown.slice(0, low)}…`, x, y);
}

/** The colours that the style sheet sets for the theme. */
export function themeColours() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    theme: colour("theme") || "light",
    text: colour("text"),
    faint: colour("faint"),
    line: colour("line"),
    panel: colour("panel"),
    back: colour("back"),
    accent: colour("accent"),
    select: colour("select"),
  };
}

/** A box beside the pointer. */
export class Tip {
  constructor() {
    this.element = el("div", { class: "tip", role: "tooltip" });
    document.body.append(this.element);
  }

  show(event, lines) {
    this.element.replaceChildren(
      ...lines.filter(Boolean).map((line) => (typeof line === "string" ? el("div", {}, line) : line)),
    );
    this.element.classList.add("shown");
    const box = this.element.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
    const below = event.clientY + 16;
    const top = below + box.height > window.innerHeight ? event.clientY - box.height - 10 : below;
    this.element.style.left = `${Math.max(4, left)}px`;
    this.element.style.top = `${Math.max(4, top)}px`;
  }

  hide() {
    this.element.classList.remove("shown");
  }
}
