// SPDX-License-Identifier: Apache-2.0
// Heat maps of the selected stalls: how late they made threads over time, and where in the second they started.

import { countedText, timeText, timeTicks, tickText } from "./format.js";
import { LATENCY_ROWS, latencyGrid, latencyOfRow, offsetGrid } from "./heat.js";
import { heat } from "./colours.js";
import { CANVAS_FONT, el, sizedContext } from "./dom.js";

const MAP_LEFT = 62;
const MAP_HEIGHT = 190;
const MAP_BOTTOM = 20;
const MAP_CELL = 5;
const OFFSET_ROWS = 50;

export class Maps {
  /** `act` has `select(range)`. */
  constructor(model, act, tip) {
    Object.assign(this, { model, act, tip });
    this.latency = el("canvas", { class: "strips" });
    this.offset = el("canvas");
    this.element = el(
      "div",
      { class: "columns" },
      el(
        "div",
        {},
        el(
          "h2",
          {},
          "How late, when",
          el("span", { class: "note" }, "a column of stalls is one event that hit many threads"),
        ),
        this.latency,
      ),
      el(
        "div",
        {},
        el(
          "h2",
          {},
          "Where in the second",
          el("span", { class: "note" }, "what happens every second is a line"),
        ),
        this.offset,
      ),
    );
    this.latency.addEventListener("pointerdown", (event) => this.#drag(event));
    this.latency.addEventListener("pointermove", (event) => this.#hover(event));
    this.latency.addEventListener("pointerleave", () => this.tip.hide());
  }

  draw(range, picked) {
    this.range = range;
    this.wide = Math.max(120, this.latency.parentElement.clientWidth);
    this.#drawLatency(picked);
    this.#drawOffset(picked);
  }

  #drawLatency(picked) {
    const { look, stalls } = this.model;
    const context = sizedContext(this.latency, this.wide, MAP_HEIGHT);
    const [from, to] = this.range;
    const columns = Math.max(1, Math.floor((this.wide - MAP_LEFT) / MAP_CELL));
    this.grid = latencyGrid(stalls, picked, from, to, columns);
    this.columns = columns;
    const most = this.grid.reduce((a, b) => Math.max(a, b), 1);
    const [top, high] = [4, MAP_HEIGHT - MAP_BOTTOM - 4];
    context.fillStyle = look.back;
    context.fillRect(MAP_LEFT, top, columns * MAP_CELL, high);
    const row = high / LATENCY_ROWS;
    for (let x = 0; x < columns; x += 1) {
      for (let y = 0; y < LATENCY_ROWS; y += 1) {
        const count = this.grid[x * LATENCY_ROWS + y];
        if (count === 0) continue;
        context.fillStyle = heat(0.25 + (0.75 * Math.log1p(count)) / Math.log1p(most), look.theme);
        context.fillRect(MAP_LEFT + x * MAP_CELL, top + high - (y + 1) * row, MAP_CELL, Math.ceil(row));
      }
    }
    context.font = CANVAS_FONT;
    context.fillStyle = look.faint;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const ns of [1e4, 1e5, 1e6, 1e7, 1e8, 1e9]) {
      const y = top + high - 2 * Math.log2(ns / latencyOfRow(0)) * row;
      if (y < top) break;
      context.fillText(timeText(ns).replace(".00", "").replace(".0", ""), MAP_LEFT - 6, y);
    }
    context.textAlign = "left";
    this.#timeAxis(context, from, to, columns * MAP_CELL);
  }

  #timeAxis(context, from, to, wide) {
    const { step, ticks } = timeTicks(from, to, wide / 90);
    for (const at of ticks) {
      const x = MAP_LEFT + ((at - from) / (to - from)) * wide;
      context.fillRect(x, MAP_HEIGHT - MAP_BOTTOM, 1, 4);
      if (x < this.wide - 45) context.fillText(tickText(at, step), x + 3, MAP_HEIGHT - MAP_BOTTOM / 2 + 2);
    }
  }

  #drawOffset(picked) {
    const { look, stalls, clock } = this.model;
    const context = sizedContext(this.offset, this.wide, MAP_HEIGHT);
    const [from, to] = this.range;
    const most = Math.max(1, Math.floor((this.wide - MAP_LEFT) / 2));
    const { cells, columns } = offsetGrid(stalls, picked, from, to, clock, most, OFFSET_ROWS);
    const [top, high] = [4, MAP_HEIGHT - MAP_BOTTOM - 4];
    const [wide, row] = [(this.wide - MAP_LEFT) / columns, high / OFFSET_ROWS];
    const largest = cells.reduce((a, b) => Math.max(a, b), 1);
    context.fillStyle = look.back;
    context.fillRect(MAP_LEFT, top, this.wide - MAP_LEFT, high);
    for (let x = 0; x < columns; x += 1) {
      for (let y = 0; y < OFFSET_ROWS; y += 1) {
        const ns = cells[x * OFFSET_ROWS + y];
        if (ns === 0) continue;
        context.fillStyle = heat(0.2 + 0.8 * Math.sqrt(ns / largest), look.theme);
        context.fillRect(MAP_LEFT + x * wide, top + y * row, Math.ceil(wide), Math.ceil(row));
      }
    }
    context.font = CANVAS_FONT;
    context.fillStyle = look.faint;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const part of [0, 0.25, 0.5, 0.75])
      context.fillText(`.${String(part * 1000).padStart(3, "0")} s`, MAP_LEFT - 6, top + part * high + 6);
    context.textAlign = "left";
    context.fillText(
      columns === 1 ? "one second" : `${countedText(columns, "column")}, from ${clock.text(from, 0)} on`,
      MAP_LEFT,
      MAP_HEIGHT - MAP_BOTTOM / 2 + 2,
    );
  }

  #timeAt(x) {
    const [from, to] = this.range;
    const part = (x - MAP_LEFT) / (this.columns * MAP_CELL);
    return from + Math.min(1, Math.max(0, part)) * (to - from);
  }

  #drag(event) {
    const box = this.latency.getBoundingClientRect();
    const start = event.clientX - box.left;
    if (event.button !== 0 || start < MAP_LEFT) return;
    const first = this.#timeAt(start);
    this.latency.setPointerCapture(event.pointerId);
    const up = (ended) => {
      this.latency.removeEventListener("pointerup", up);
      const last = this.#timeAt(ended.clientX - box.left);
      if (Math.abs(ended.clientX - box.left - start) >= 4)
        this.act.select([Math.min(first, last), Math.max(first, last)]);
    };
    this.latency.addEventListener("pointerup", up);
  }

  #hover(event) {
    const x = Math.floor((event.offsetX - MAP_LEFT) / MAP_CELL);
    const high = MAP_HEIGHT - MAP_BOTTOM - 4;
    const y = Math.floor(((4 + high - event.offsetY) / high) * LATENCY_ROWS);
    const count =
      x >= 0 && x < this.columns && y >= 0 && y < LATENCY_ROWS ? this.grid[x * LATENCY_ROWS + y] : 0;
    if (!count) return this.tip.hide();
    const range = `${timeText(y === 0 ? 0 : latencyOfRow(y))} to ${timeText(latencyOfRow(y + 1))}`;
    this.tip.show(event, [
      `${countedText(count, "stall")}, late by ${range}`,
      this.model.clock.text(this.#timeAt(event.offsetX), 3),
    ]);
  }
}
