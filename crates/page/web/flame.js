// SPDX-License-Identifier: Apache-2.0
// The flame graph of the selection. Its leaves are states: why the time passed there.

import { percentText, timeText } from "./format.js";
import { FlameTree } from "./stacks.js";
import { inkOn } from "./colours.js";
import { CANVAS_FONT, el, fitText, sizedContext } from "./dom.js";

const BOX = 18;
const LEAST_PIXELS = 0.6;
/** The height is that of boxes at least as wide: narrower ones cannot be read, and are seen by a click. */
const WIDE_PIXELS = 2;
const MOST_DEPTH = 250;

export class FlameGraph {
  /** `act` has `reverse()` and `search(text)`. */
  constructor(model, act, tip) {
    Object.assign(this, { model, act, tip, focus: [] });
    this.canvas = el("canvas");
    this.note = el("span", { class: "note", id: "flame-note" });
    this.turn = el("button", { id: "reverse", onclick: () => act.reverse() }, "from the leaf");
    this.whole = el("button", { id: "unzoom", hidden: true, onclick: () => this.#zoom([]) }, "show all");
    this.find = el("input", {
      type: "search",
      id: "search",
      placeholder: "Search functions …  ( f )",
      "aria-label": "Search functions",
    });
    this.find.addEventListener("input", () => act.search(this.find.value));
    this.element = el(
      "div",
      {},
      el("h2", {}, "Flame graph of the selection", this.find, this.turn, this.whole, this.note),
      this.canvas,
    );
    this.canvas.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("pointerleave", () => this.tip.hide());
    this.canvas.addEventListener("click", (event) => this.#click(event));
  }

  /** `own` is the time of each node of the recording's tree in the selection. */
  update(view, own) {
    if (view.reversed !== this.isReversed) this.focus = [];
    this.isReversed = view.reversed;
    this.tree = FlameTree.of(this.model.stacks, own, view.reversed);
    this.view = view;
    if (this.find !== document.activeElement) this.find.value = view.search;
    this.turn.setAttribute("aria-pressed", view.reversed);
    this.draw();
  }

  /** The focused node by the functions on the way to it: nodes change with the selection. */
  #focusNode() {
    let node = 0;
    for (const number of this.focus) {
      const { starts, rows } = this.tree.children;
      let next = -1;
      for (let at = starts[node]; at < starts[node + 1]; at += 1) {
        if (rows[at] !== node && this.tree.functions[rows[at]] === number && this.tree.totals[rows[at]] > 0)
          next = rows[at];
      }
      if (next < 0) return node;
      node = next;
    }
    return node;
  }

  draw() {
    const { model, tree } = this;
    const { stacks, look } = model;
    const width = Math.max(300, this.element.clientWidth);
    const names = (number) => stacks.functionName(number);
    const focus = this.#focusNode();
    const all = tree.layout(focus, LEAST_PIXELS / width, names);
    const boxes = all.filter((box) => box.depth < MOST_DEPTH);
    const depth = boxes.reduce(
      (most, box) => (box.width * width >= WIDE_PIXELS ? Math.max(most, box.depth) : most),
      0,
    );
    const height = (depth + 1) * BOX;
    const context = sizedContext(this.canvas, width, height);
    context.font = CANVAS_FONT;
    context.textBaseline = "middle";
    const wanted = this.view.search.toLowerCase();
    const states = this.#dominantStates();
    this.boxes = boxes;
    let found = 0;
    // Matches within matches count once: boxes come parents first.
    const matched = new Set();
    for (const box of boxes) {
      const { node } = box;
      const name = node === 0 ? this.#rootName() : names(tree.functions[node]);
      const isMatch = wanted !== "" && node !== 0 && name.toLowerCase().includes(wanted);
      const isWithin = matched.has(tree.parents[node]);
      if (isMatch || (isWithin && node !== 0)) matched.add(node);
      if (isMatch && !isWithin) found += tree.totals[node];
      this.#drawBox(context, box, {
        width,
        height,
        name,
        isMatch,
        isDim: wanted !== "" && !isMatch,
        state: states[node],
        look,
      });
    }
    this.whole.hidden = this.focus.length === 0;
    const total = tree.totals[0];
    this.note.textContent = wanted
      ? `${timeText(found)} match, ${percentText(found, total)} of ${timeText(total)}`
      : `${timeText(total)} of thread time; a click zooms`;
    if (boxes.length < all.length) this.note.textContent += `; the outermost ${MOST_DEPTH} functions are shown`;
    this.note.dataset.totalNs = Math.round(total);
    this.note.dataset.foundNs = Math.round(found);
  }

  #rootName() {
    return this.model.selectedText;
  }

  /** The state of each node's largest leaf. */
  #dominantStates() {
    const { tree, model } = this;
    const states = new Uint8Array(tree.totals.length).fill(255);
    const most = new Float64Array(tree.totals.length);
    const kinds = model.stacks.kinds;
    for (let node = tree.totals.length - 1; node > 0; node -= 1) {
      const kind = kinds[tree.functions[node]];
      if (kind >= 32) states[node] = tree.stateOf(node);
      const parent = tree.parents[node];
      if (tree.totals[node] > most[parent]) {
        most[parent] = tree.totals[node];
        if (!(kinds[tree.functions[parent]] >= 32)) states[parent] = states[node];
      }
    }
    if (this.isReversed)
      for (let node = 1; node < states.length; node += 1)
        if (states[node] === 255) states[node] = states[tree.parents[node]];
    return states;
  }

  #drawBox(context, box, { width, height, name, isMatch, isDim, state, look }) {
    const [x, y, wide] = [
      box.x * width,
      height - (box.depth + 1) * BOX,
      Math.max(0.5, box.width * width - 0.6),
    ];
    const kind = this.model.stacks.kinds[this.tree.functions[box.node]];
    const plain = box.node === 0 ? look.line : state === 255 ? look.line : this.model.colours[state];
    // Functions are paler than the state that they lead to, those of the kernel less so.
    const mixed =
      box.node === 0 || kind >= 32 ? plain : mixColour(plain, look.panel, kind === 1 ? 0.36 : 0.52);
    context.fillStyle = isMatch ? "#c2187a" : mixed;
    context.globalAlpha = isDim && !isMatch ? 0.55 : 1;
    context.fillRect(x, y, wide, BOX - 1);
    context.globalAlpha = 1;
    if (wide < 16) return;
    context.fillStyle = isMatch ? "#ffffff" : mixed.startsWith("#") ? inkOn(mixed) : look.text;
    fitText(context, name, x + 3, y + BOX / 2, wide - 5);
  }

  #boxAt(event) {
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    const depth = Math.floor((height - event.offsetY) / BOX);
    const part = event.offsetX / width;
    return this.boxes?.find((box) => box.depth === depth && part >= box.x && part < box.x + box.width);
  }

  #hover(event) {
    const box = this.#boxAt(event);
    if (!box) return this.tip.hide();
    const { stacks } = this.model;
    const number = this.tree.functions[box.node];
    const name = box.node === 0 ? this.#rootName() : stacks.functionName(number);
    const module = stacks.strings[stacks.modules[number]];
    const [time, whole] = [this.tree.totals[box.node], this.tree.totals[0]];
    this.tip.show(event, [el("b", {}, name), module, `${timeText(time)}, ${percentText(time, whole)}`]);
  }

  #click(event) {
    const box = this.#boxAt(event);
    if (!box) return;
    const way = [];
    for (let node = box.node; node > 0; node = this.tree.parents[node])
      way.unshift(this.tree.functions[node]);
    this.#zoom(way);
  }

  #zoom(way) {
    this.focus = way;
    this.tip.hide();
    this.draw();
  }
}

/** `part` of one colour and the rest of the other; both are `#rrggbb`. */
export function mixColour(colour, other, part) {
  const channel = (text, at) => parseInt(text.slice(at, at + 2), 16);
  const mixed = [1, 3, 5].map((at) =>
    Math.round(channel(colour, at) * part + channel(other, at) * (1 - part)),
  );
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}
