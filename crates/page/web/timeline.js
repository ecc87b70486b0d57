// SPDX-License-Identifier: Apache-2.0
// Threads over time: a strip a thread, which shows for each column of pixels the share of each state, and above it
// how late stalls made the thread. Two canvases: what is recorded, and the selection with the selected stall.

import { timeText, timeTicks, tickText } from "./format.js";
import { firstAbove } from "./data.js";
import { STATES, UNACCOUNTED } from "./ledger.js";
import { inkOn, luminance } from "./colours.js";
import { CANVAS_FONT, el, fitText, sizedContext } from "./dom.js";

export const GUTTER = 330;
const ROW = 30;
const LANE = 9;
const STRIP = 16;
const NAME_WIDTH = 160;
const LATE_WIDTH = 66;
const MOST_ROWS_SHOWN = 13;
const OVERVIEW = 38;
const AXIS = 34;
/** A shorter drag is a click. */
const DRAG_PIXELS = 4;

/** The height of a bar for lateness: from 1 px at 10 µs on, by its order of magnitude, full at 100 ms. */
export function lateHeight(ns, full) {
  const part = Math.log10(Math.max(ns, 10_000) / 10_000) / 4;
  return Math.max(1.5, Math.min(1, part) * full);
}

/**
 * The shares of states in each column of pixels of a thread: single stalls exactly, and of the bin's other time in
 * proportion. Numbers between 0 and 1; what is missing to 1 is time in which the thread did not live.
 */
export function columnShares(model, thread, from, to, columns, restOf) {
  const { stalls, ledger, threads } = model;
  const shares = new Float32Array(columns * STATES);
  const scale = columns / (to - from);
  stalls.eachPart(thread, from, to, (state, ns, stall) => {
    stalls.parts(stall, (part, start, end) => {
      if (part !== state) return;
      const [a, b] = [(Math.max(start, from) - from) * scale, (Math.min(end, to) - from) * scale];
      const [first, last] = [Math.floor(a), Math.min(columns - 1, Math.floor(b))];
      const shown = stalls.shown(stall, state);
      for (let x = first; x <= last; x += 1)
        shares[x * STATES + shown] += Math.min(b, x + 1) - Math.max(a, x);
    });
  });
  for (let x = 0; x < columns; x += 1) {
    const [start, end] = [from + x / scale, from + (x + 1) / scale];
    const lived =
      Math.max(0, Math.min(end, threads.end[thread]) - Math.max(start, threads.start[thread])) * scale;
    let known = 0;
    for (let state = 0; state < STATES; state += 1) known += shares[x * STATES + state];
    const missing = Math.min(1, lived) - known;
    if (missing <= 0.001) continue;
    // A column may cover many bins: of these the first and the last, and what lies between, count alike.
    const bins = [ledger.binAt(start), ledger.binAt(end - 1e-6)];
    const count = Math.min(8, bins[1] - bins[0] + 1);
    for (let at = 0; at < count; at += 1) {
      const rest = restOf(thread, bins[0] + Math.floor((at * (bins[1] - bins[0] + 1)) / count));
      if (!rest) continue;
      for (let state = 0; state < STATES; state += 1)
        shares[x * STATES + state] += (missing * rest[state]) / count;
    }
  }
  return shares;
}

export class Timeline {
  /** `act` has `select(range)`, `zoom(range)`, `thread(index, adds)`, `stall(index)` and `idle()`. */
  constructor(model, act, tip) {
    Object.assign(this, { model, act, tip });
    this.rests = new Map();
    this.overview = el("canvas", { class: "overview" });
    this.axis = el("canvas", { class: "axis" });
    this.strips = el("canvas", {
      class: "strips",
      tabindex: "0",
      "aria-label": "Threads over time. Press ? for keys.",
    });
    this.overlay = el("canvas");
    this.layers = el("div", { class: "layers sticky" }, this.strips, this.overlay);
    this.space = el("div", {}, this.layers);
    this.scroll = el("div", { class: "scroll" }, this.space);
    this.fold = el("div", { class: "note" });
    this.element = el("div", {}, this.overview, this.axis, this.scroll, this.fold);
    this.scroll.addEventListener("scroll", () => this.draw());
    this.#listen();
  }

  #listen() {
    const { strips, overview } = this;
    strips.addEventListener("pointerdown", (event) => this.#down(event, this.zoom));
    overview.addEventListener("pointerdown", (event) => this.#down(event, [0, this.model.duration]));
    strips.addEventListener("pointermove", (event) => this.#hover(event));
    strips.addEventListener("pointerleave", () => this.tip.hide());
    strips.addEventListener("dblclick", (event) => this.#doubleClick(event));
    strips.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    this.axis.addEventListener("pointermove", (event) => this.#hoverMark(event));
    this.axis.addEventListener("pointerleave", () => this.tip.hide());
  }

  get zoom() {
    return this.view.zoom ?? [0, this.model.duration];
  }

  get plotWidth() {
    return Math.max(50, this.width - GUTTER);
  }

  timeAt(x, [from, to]) {
    const part = (x - GUTTER) / this.plotWidth;
    return Math.min(this.model.duration, Math.max(0, from + part * (to - from)));
  }

  xOf(ns, [from, to] = this.zoom) {
    return GUTTER + ((ns - from) / (to - from)) * this.plotWidth;
  }

  /** A drag selects. In the overview it zooms, too, because that is what it is for. */
  #down(event, range) {
    if (event.button !== 0) return;
    const canvas = event.currentTarget;
    const box = canvas.getBoundingClientRect();
    const [x0, y0] = [event.clientX - box.left, event.clientY - box.top];
    if (x0 < GUTTER) {
      if (canvas === this.strips) this.#clickGutter(y0, event.shiftKey || event.ctrlKey || event.metaKey);
      return;
    }
    canvas.setPointerCapture(event.pointerId);
    const start = this.timeAt(x0, range);
    let isDrag = false;
    const move = (moved) => {
      const x = moved.clientX - box.left;
      isDrag ||= Math.abs(x - x0) >= DRAG_PIXELS;
      if (!isDrag) return;
      this.tip.hide();
      const at = this.timeAt(x, range);
      const picked = [Math.min(start, at), Math.max(start, at)];
      if (picked[1] - picked[0] >= 1) this.act.select(picked);
    };
    const up = () => {
      canvas.removeEventListener("pointermove", move);
      canvas.removeEventListener("pointerup", up);
      if (isDrag && canvas === this.overview) this.act.zoom(this.view.range);
      if (!isDrag) this.#click(canvas, x0, y0, range);
    };
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerup", up);
  }

  #click(canvas, x, y, range) {
    if (canvas === this.overview) return this.act.zoom(null);
    const thread = this.#threadAt(y);
    const stall = thread === undefined ? -1 : this.#stallAt(thread, x, range);
    if (stall >= 0) this.act.stall(stall);
    else this.act.select(null);
  }

  #doubleClick(event) {
    if (event.offsetX < GUTTER) return;
    if (this.view.range) return this.act.zoom(this.view.range);
    const thread = this.#threadAt(event.offsetY);
    const stall = thread === undefined ? -1 : this.#stallAt(thread, event.offsetX, this.zoom);
    if (stall >= 0) this.act.zoom(this.around(stall));
  }

  /** The time of a stall with some of what is before and after it. */
  around(stall) {
    const { stalls, duration } = this.model;
    const margin = Math.max(20_000, stalls.duration[stall] * 0.6);
    return [Math.max(0, stalls.start[stall] - margin), Math.min(duration, stalls.end(stall) + margin)];
  }

  #clickGutter(y, adds) {
    const thread = this.#threadAt(y);
    if (thread !== undefined) this.act.thread(thread, adds);
  }

  #wheel(event) {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    const [from, to] = this.zoom;
    if (event.shiftKey) return this.pan(Math.sign(event.deltaY || event.deltaX) * 0.15);
    this.zoomBy(event.deltaY > 0 ? 1.35 : 1 / 1.35, this.timeAt(event.offsetX, [from, to]));
  }

  zoomBy(factor, around) {
    const [from, to] = this.zoom;
    const at = around ?? (this.view.range ? (this.view.range[0] + this.view.range[1]) / 2 : (from + to) / 2);
    const span = Math.min(this.model.duration, Math.max(1_000, (to - from) * factor));
    const start = at - ((at - from) / (to - from)) * span;
    this.#show(start, span);
  }

  pan(part) {
    const [from, to] = this.zoom;
    this.#show(from + part * (to - from), to - from);
  }

  #show(start, span) {
    const from = Math.min(Math.max(0, start), Math.max(0, this.model.duration - span));
    this.act.zoom(span >= this.model.duration ? null : [from, from + span]);
  }

  #threadAt(y) {
    return this.rows[Math.floor((y + this.scroll.scrollTop) / ROW)];
  }

  /** The stall under the pointer: the latest one of those within two pixels. */
  #stallAt(thread, x, range) {
    const { stalls } = this.model;
    const slack = (2 * (range[1] - range[0])) / this.plotWidth;
    const at = this.timeAt(x, range);
    let [found, most] = [-1, -1];
    stalls.overlapping(thread, at - slack, at + slack, (stall) => {
      const weight = stalls.isVoluntary(stall) ? 0 : 1 + stalls.late[stall];
      if (weight > most) [found, most] = [stall, weight];
    });
    return found;
  }

  #hover(event) {
    if (event.buttons) return;
    const thread = this.#threadAt(event.offsetY);
    if (thread === undefined) return this.tip.hide();
    const { threads, stalls, clock } = this.model;
    const name = `${threads.name(thread)} (${threads.process(thread)} ${threads.pid[thread]}, thread ${threads.tid[thread]})`;
    if (event.offsetX < GUTTER)
      return this.tip.show(event, [name, "Click selects the thread; Shift and click adds it."]);
    const at = this.timeAt(event.offsetX, this.zoom);
    const stall = this.#stallAt(thread, event.offsetX, this.zoom);
    const lines = [clock.text(at), name];
    if (stall >= 0)
      lines.splice(1, 0, el("b", {}, this.model.stallText(stall)), this.model.stalls.text("site", stall));
    else lines.push(this.#mixText(thread, at));
    if (stall >= 0 && stalls.wakerText(stall)) lines.push(`woken by ${stalls.wakerText(stall)}`);
    this.tip.show(event, lines);
  }

  #mixText(thread, at) {
    const rest = this.restOf(thread, this.model.ledger.binAt(at));
    if (!rest) return "not alive";
    const shares = [...rest.entries()]
      .filter(([, share]) => share >= 0.005)
      .sort((a, b) => b[1] - a[1])
      .slice(0, 5);
    const text = shares
      .map(([state, share]) => `${this.model.stateNames[state]} ${Math.round(share * 100)} %`)
      .join(", ");
    return `between stalls, in this bin: ${text}`;
  }

  #hoverMark(event) {
    const { marks, clock } = this.model;
    const near = marks.filter((mark) => Math.abs(this.xOf(mark.at) - event.offsetX) < 6).slice(0, 8);
    if (near.length === 0) return this.tip.hide();
    this.tip.show(
      event,
      near.map((mark) => `${clock.text(mark.at)} ${mark.text}`),
    );
  }

  /** The states of a bin of a thread beside its stalls, as shares of that time; undefined where it did not live. */
  restOf(thread, bin) {
    const { ledger, stalls } = this.model;
    const key = bin * this.model.threads.count + thread;
    if (this.rests.has(key)) return this.rests.get(key);
    const from = firstAbove(ledger.thread, thread - 1, ledger.starts[bin], ledger.starts[bin + 1]);
    let rest;
    if (from < ledger.starts[bin + 1] && ledger.thread[from] === thread) {
      rest = new Float32Array(STATES);
      const inStalls = new Float64Array(STATES);
      ledger.statesOfRow(from, rest, 0);
      stalls.addParts(thread, ledger.edges[bin], ledger.edges[bin + 1], inStalls, 0);
      let sum = 0;
      for (let state = 0; state < STATES; state += 1) {
        rest[state] = Math.max(0, rest[state] - inStalls[state]);
        sum += rest[state];
      }
      if (sum > 0) for (let state = 0; state < STATES; state += 1) rest[state] /= sum;
      else rest[UNACCOUNTED] = 1;
    }
    if (this.rests.size > 200_000) this.rests.clear();
    this.rests.set(key, rest);
    return rest;
  }

  /** Sets what is drawn. `rows` are threads; `sums` their states in the selection; `late` how late they were. */
  update(view, rows, sums, late, folded) {
    Object.assign(this, { view, rows, sums, late });
    const shown = Math.min(rows.length, MOST_ROWS_SHOWN);
    this.height = Math.max(1, shown) * ROW;
    this.scroll.style.height = `${this.height}px`;
    this.space.style.height = `${rows.length * ROW}px`;
    this.fold.replaceChildren();
    if (folded > 0 || view.idle) {
      const text = view.idle
        ? "Fold idle threads"
        : `${folded} idle ${folded === 1 ? "thread is" : "threads are"} folded away: show`;
      this.fold.append(el("button", { class: "link", id: "idle", onclick: () => this.act.idle() }, text));
    }
  }

  draw() {
    this.width = Math.max(500, this.element.clientWidth);
    this.#drawOverview();
    this.#drawAxis();
    this.#drawStrips();
    this.drawOverlay();
  }

  #drawOverview() {
    const { model, width } = this;
    const context = sizedContext(this.overview, width, OVERVIEW);
    const { stalls, look } = model;
    context.font = CANVAS_FONT;
    context.fillStyle = look.faint;
    context.textBaseline = "middle";
    context.fillText("whole recording: how late, and when", 0, OVERVIEW / 2);
    context.fillStyle = look.back;
    context.fillRect(GUTTER, 0, this.plotWidth, OVERVIEW);
    const [wide, whole] = [Math.floor(this.plotWidth), [0, model.duration]];
    if (this.overviewLate?.length !== wide) {
      this.overviewLate = new Int32Array(wide).fill(-1);
      for (const stall of model.lateStalls) {
        const x = Math.min(
          wide - 1,
          Math.max(0, Math.floor(this.xOf(stalls.lateFrom(stall), whole) - GUTTER)),
        );
        if (this.overviewLate[x] < 0 || stalls.late[stall] > stalls.late[this.overviewLate[x]])
          this.overviewLate[x] = stall;
      }
    }
    this.overviewLate.forEach((stall, x) => {
      if (stall < 0) return;
      const height = lateHeight(stalls.late[stall], OVERVIEW - 4);
      context.fillStyle = this.#visible(stalls.shown(stall));
      context.fillRect(GUTTER + x, OVERVIEW - height, 1.5, height);
    });
    const [from, to] = this.zoom;
    if (from > 0 || to < model.duration) {
      const [a, b] = [this.xOf(from, whole), this.xOf(to, whole)];
      context.fillStyle = look.theme === "dark" ? "rgb(0 0 0 / 45%)" : "rgb(90 100 110 / 22%)";
      context.fillRect(GUTTER, 0, a - GUTTER, OVERVIEW);
      context.fillRect(b, 0, GUTTER + this.plotWidth - b, OVERVIEW);
      context.strokeStyle = look.accent;
      context.strokeRect(a + 0.5, 0.5, Math.max(2, b - a - 1), OVERVIEW - 1);
    }
  }

  colourOf(state) {
    return this.model.colours[state];
  }

  #drawAxis() {
    const { model, width } = this;
    const context = sizedContext(this.axis, width, AXIS);
    const { look, clock } = model;
    const [from, to] = this.zoom;
    context.font = CANVAS_FONT;
    context.textBaseline = "alphabetic";
    context.fillStyle = look.faint;
    context.fillText("thread", 0, AXIS - 4);
    context.textAlign = "right";
    context.fillText("late", NAME_WIDTH + LATE_WIDTH - 8, AXIS - 4);
    context.textAlign = "left";
    context.fillText("time in states", NAME_WIDTH + LATE_WIDTH, AXIS - 4);
    const { step, ticks } = timeTicks(from, to, this.plotWidth / 95);
    for (const at of ticks) {
      const x = this.xOf(at);
      context.fillStyle = look.line;
      context.fillRect(x, AXIS - 18, 1, 18);
      context.fillStyle = look.faint;
      if (x < width - 40) context.fillText(tickText(at, step), x + 3, AXIS - 5);
    }
    context.fillStyle = look.faint;
    context.fillText(`from ${clock.text(from)}, ${timeText(to - from)} shown`, GUTTER, 11);
    for (const mark of model.marks) {
      if (mark.at + mark.duration < from || mark.at > to) continue;
      const x = this.xOf(mark.at);
      context.fillStyle = look.accent;
      if (mark.duration > 0) context.fillRect(x, 13, Math.max(1, this.xOf(mark.at + mark.duration) - x), 3);
      context.beginPath();
      context.moveTo(x - 4, 12);
      context.lineTo(x + 4, 12);
      context.lineTo(x, 19);
      context.fill();
    }
  }

  #visibleRows() {
    const first = Math.floor(this.scroll.scrollTop / ROW);
    return [first, Math.min(this.rows.length, first + Math.ceil(this.height / ROW) + 1)];
  }

  #yOf(row) {
    return row * ROW - this.scroll.scrollTop;
  }

  /** While a drag selects, the strips stay as they are: only what is at their left changes. */
  #drawStrips() {
    const [first, end] = this.#visibleRows();
    const drawn = JSON.stringify([
      this.zoom,
      this.rows.slice(first, end),
      this.scroll.scrollTop,
      this.width,
      this.height,
      window.devicePixelRatio,
      this.model.look.theme,
    ]);
    const isSame = drawn === this.drawn;
    this.drawn = drawn;
    const context = isSame
      ? this.strips.getContext("2d")
      : sizedContext(this.strips, this.width, this.height);
    if (isSame) context.clearRect(0, 0, GUTTER - 1, this.height);
    for (let row = first; row < end; row += 1) {
      const [thread, y] = [this.rows[row], this.#yOf(row)];
      this.#drawGutter(context, thread, y);
      if (isSame) continue;
      context.fillStyle = this.model.look.line;
      context.fillRect(GUTTER, y + ROW - 1, this.plotWidth, 1);
      this.#drawShares(context, thread, y);
      this.#drawStalls(context, thread, y);
    }
  }

  #drawGutter(context, thread, y) {
    const { model, view } = this;
    const { look, threads, order } = model;
    context.fillStyle = look.line;
    context.fillRect(0, y + ROW - 1, GUTTER - 1, 1);
    if (view.threads?.has(thread)) {
      context.fillStyle = look.accent;
      context.fillRect(0, y + 2, 3, ROW - 5);
    }
    context.font = view.threads?.has(thread) ? `bold ${CANVAS_FONT}` : CANVAS_FONT;
    context.textBaseline = "middle";
    context.fillStyle = look.text;
    const name = threads.name(thread);
    const suffix =
      threads.process(thread) === name ? ` ${threads.tid[thread]}` : ` · ${threads.process(thread)}`;
    fitText(context, name + suffix, 7, y + ROW / 2, NAME_WIDTH - 12);
    context.font = CANVAS_FONT;
    context.textAlign = "right";
    const late = this.late[thread];
    context.fillStyle = late > 0 ? look.text : look.faint;
    context.fillText(late > 0 ? timeText(late) : "–", NAME_WIDTH + LATE_WIDTH - 8, y + ROW / 2);
    context.textAlign = "left";
    const [x0, wide] = [NAME_WIDTH + LATE_WIDTH, GUTTER - NAME_WIDTH - LATE_WIDTH - 10];
    let whole = 0;
    for (const state of order) whole += this.sums[thread * STATES + state];
    if (whole <= 0) return;
    let x = x0;
    for (const state of order) {
      const part = (this.sums[thread * STATES + state] / whole) * wide;
      context.fillStyle = this.colourOf(state);
      context.fillRect(x, y + 8, part, STRIP - 2);
      x += part;
    }
    context.strokeStyle = look.line;
    context.strokeRect(x0 + 0.5, y + 8.5, wide - 1, STRIP - 3);
  }

  /** Columns of pixels with the shares of states, running at the bottom. */
  #drawShares(context, thread, y) {
    const ratio = window.devicePixelRatio || 1;
    const [from, to] = this.zoom;
    const [columns, height] = [Math.floor(this.plotWidth * ratio), Math.round(STRIP * ratio)];
    const shares = columnShares(this.model, thread, from, to, columns, (one, bin) => this.restOf(one, bin));
    const image = context.createImageData(columns, height);
    const pixels = new Uint32Array(image.data.buffer);
    const { order, words } = this.model;
    for (let x = 0; x < columns; x += 1) {
      let filled = 0;
      let sum = 0;
      for (const state of order) {
        const share = shares[x * STATES + state];
        if (share <= 0) continue;
        sum += share;
        const until = Math.min(height, Math.round(sum * height));
        for (; filled < until; filled += 1) pixels[(height - 1 - filled) * columns + x] = words[state];
      }
    }
    context.putImageData(image, Math.round(GUTTER * ratio), Math.round((y + LANE + 3) * ratio));
  }

  /** Bars above the strip for how late, and labels in blocks that are wide enough. */
  #drawStalls(context, thread, y) {
    const { stalls, look } = this.model;
    const [from, to] = this.zoom;
    const columns = Math.floor(this.plotWidth);
    const latest = new Int32Array(columns).fill(-1);
    const labelled = [];
    const least = (34 * (to - from)) / this.plotWidth;
    stalls.overlapping(thread, from, to, (stall) => {
      if (stalls.duration[stall] >= least) labelled.push(stall);
      if (stalls.isVoluntary(stall)) return;
      const x = Math.max(0, Math.min(columns - 1, Math.floor(this.xOf(stalls.lateFrom(stall)) - GUTTER)));
      if (latest[x] < 0 || stalls.late[stall] > stalls.late[latest[x]]) latest[x] = stall;
    });
    latest.forEach((stall, x) => {
      if (stall < 0) return;
      const height = lateHeight(stalls.late[stall], LANE);
      const wide = Math.max(2, Math.min(columns - x, this.xOf(stalls.end(stall)) - GUTTER - x));
      context.fillStyle = this.#visible(stalls.shown(stall));
      context.fillRect(GUTTER + x, y + LANE + 2 - height, wide, height);
    });
    context.font = CANVAS_FONT;
    context.textBaseline = "middle";
    for (const stall of labelled.slice(0, 200)) {
      const [a, b] = [
        Math.max(GUTTER, this.xOf(stalls.start[stall])),
        Math.min(this.width, this.xOf(stalls.end(stall))),
      ];
      if (!stalls.isVoluntary(stall)) {
        context.strokeStyle = look.text;
        context.strokeRect(a + 0.5, y + LANE + 3.5, b - a - 1, STRIP - 1);
      }
      context.fillStyle = inkOn(this.colourOf(stalls.shown(stall)));
      fitText(
        context,
        `${stalls.what(stall)} ${timeText(stalls.duration[stall])}`,
        a + 4,
        y + LANE + 3.5 + STRIP / 2,
        b - a - 8,
      );
    }
  }

  /** A bar of its own must be seen on the panel: yellow is darker, and waits that sound idle are plain. */
  #visible(state) {
    const { model } = this;
    if (model.voluntary.has(state)) return model.look.faint;
    const colour = this.colourOf(state);
    return model.look.theme === "light" && luminance(colour) > 0.6 ? "#a89800" : colour;
  }

  /** The selected range, and the selected stall with its waker, its lock's holder and who ran instead. */
  drawOverlay() {
    const context = sizedContext(this.overlay, this.width, this.height);
    const { look, stalls } = this.model;
    const range = this.view.range;
    if (range) {
      const [a, b] = [Math.max(GUTTER, this.xOf(range[0])), Math.min(this.width, this.xOf(range[1]))];
      if (b > a) {
        context.globalAlpha = 0.13;
        context.fillStyle = look.select;
        context.fillRect(a, 0, b - a, this.height);
        context.globalAlpha = 1;
        context.fillRect(a, 0, 1, this.height);
        context.fillRect(b - 1, 0, 1, this.height);
      }
    }
    const stall = this.view.stall === null ? -1 : stalls.find(this.view.stall);
    if (stall >= 0) this.#drawStory(context, stall);
  }

  #drawStory(context, stall) {
    const { stalls, look, threads } = this.model;
    const row = this.rows.indexOf(stalls.thread[stall]);
    if (row < 0) return;
    const middle = (at) => this.#yOf(at) + LANE + 3 + STRIP / 2;
    const [start, woken, end] = [stalls.start[stall], stalls.wokenAt(stall), stalls.end(stall)].map((ns) =>
      this.xOf(ns),
    );
    context.lineWidth = 2;
    context.strokeStyle = look.text;
    context.strokeRect(
      Math.max(GUTTER, start) - 1,
      this.#yOf(row) + LANE + 1,
      Math.max(3, end - start) + 2,
      STRIP + 4,
    );
    context.lineWidth = 1.5;
    const owner = stalls.mention(stalls.owner[stall]);
    const note = (thread, from, to, text) => {
      const other = this.rows.indexOf(thread);
      if (other < 0) return;
      context.setLineDash([4, 3]);
      context.strokeRect(
        Math.max(GUTTER, from),
        this.#yOf(other) + LANE + 2,
        Math.max(3, to - from),
        STRIP + 2,
      );
      context.setLineDash([]);
      this.#label(context, text, Math.max(GUTTER, from) + 3, this.#yOf(other) + 7);
    };
    const ran = stalls.ranInstead(stall).filter(([thread]) => thread?.index >= 0);
    for (const [thread, ns] of ran.slice(0, 3))
      note(
        thread.index,
        woken < end && stalls.blocked[stall] > 0 ? woken : start,
        end,
        `ran ${timeText(ns)}`,
      );
    if (owner?.index >= 0) note(owner.index, start, woken, "holds the lock");
    const waker = stalls.mention(stalls.waker[stall]);
    if (waker?.index >= 0)
      this.#arrow(
        context,
        woken,
        this.rows.indexOf(waker.index),
        row,
        middle,
        `woken by ${threads.name(waker.index)}`,
      );
  }

  #arrow(context, x, fromRow, toRow, middle, text) {
    if (fromRow < 0 || fromRow === toRow || x < GUTTER) return;
    const { look } = this.model;
    const down = toRow > fromRow ? 1 : -1;
    const [from, to] = [middle(fromRow), middle(toRow) - (down * STRIP) / 2];
    context.strokeStyle = look.text;
    context.fillStyle = look.text;
    context.beginPath();
    context.moveTo(x, from);
    context.lineTo(x, to);
    context.stroke();
    context.beginPath();
    context.moveTo(x, to);
    context.lineTo(x - 4, to - down * 7);
    context.lineTo(x + 4, to - down * 7);
    context.fill();
    context.beginPath();
    context.arc(x, from, 3, 0, 7);
    context.fill();
    this.#label(context, text, x + 7, (from + to) / 2);
  }

  #label(context, text, x, y) {
    const { look } = this.model;
    context.font = CANVAS_FONT;
    context.textBaseline = "middle";
    const wide = Math.min(220, context.measureText(text.slice(0, 60)).width);
    const left = Math.max(GUTTER, Math.min(x, this.width - wide - 6));
    context.fillStyle = look.panel;
    context.globalAlpha = 0.9;
    context.fillRect(left - 3, y - 8, wide + 6, 16);
    context.globalAlpha = 1;
    context.fillStyle = look.text;
    fitText(context, text, left, y, wide + 2);
  }

  /** Scrolls so that a thread is seen. */
  reveal(thread) {
    const row = this.rows.indexOf(thread);
    if (row < 0) return;
    const top = this.scroll.scrollTop;
    if (row * ROW < top || (row + 1) * ROW > top + this.height)
      this.scroll.scrollTop = Math.max(0, (row - 2) * ROW);
  }
}
