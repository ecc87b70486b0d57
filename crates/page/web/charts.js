// SPDX-License-Identifier: Apache-2.0
// Line charts of counters, on the time axis of the threads. uPlot draws them.

import { valueText } from "./format.js";
import { el } from "./dom.js";
import { GUTTER } from "./timeline.js";

const CHART_HEIGHT = 72;
const MOST_AT_FIRST = 3;
const CHART_LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];

/** The counters of the page, with rates in place of sums: `{ name, isRate, unit, times, values }`, times in s. */
export function countersOf(data, threads) {
  const { head, column } = data;
  const [times, integers, floats] = ["counter_time", "counter_integer", "counter_float"].map((name) =>
    column(name),
  );
  return head.counters.map((counter) => {
    const { from, count, integer, value_from: valueFrom } = counter;
    const raw = (integer ? integers : floats).subarray(valueFrom, valueFrom + count);
    const at = times.subarray(from, from + count);
    const isRate = counter.kind === "sum";
    const owner =
      counter.thread > 0 ? `${threads.process(counter.thread - 1)} ${threads.pid[counter.thread - 1]}: ` : "";
    return {
      name: owner + head.strings[counter.name],
      unit: counter.unit,
      isRate,
      times: Float64Array.from(at, (ns) => ns / 1e9),
      values: isRate ? ratesOf(at, raw) : raw,
    };
  });
}

/** Per second, between each value and the one before; the first has none. uPlot draws no `null`. */
export function ratesOf(times, sums) {
  return Array.from(sums, (sum, at) => {
    const seconds = at > 0 ? (times[at] - times[at - 1]) / 1e9 : 0;
    return seconds > 0 ? Math.max(0, (sum - sums[at - 1]) / seconds) : null;
  });
}

/** How far a counter leaves its usual value: the largest distance to the median, in parts of the largest value. */
export function unrest(values) {
  const sorted = Array.from(values)
    .filter((value) => Number.isFinite(value))
    .sort((a, b) => a - b);
  if (sorted.length < 3) return 0;
  const median = sorted[sorted.length >> 1];
  const most = Math.max(Math.abs(sorted[0]), Math.abs(sorted[sorted.length - 1]));
  return most === 0 ? 0 : Math.max(sorted[sorted.length - 1] - median, median - sorted[0]) / most;
}

export class Charts {
  /** `act` has `counters(names)` and `select(range)`. */
  constructor(model, act) {
    Object.assign(this, { model, act, plots: new Map() });
    const ranked = model.counters.map((counter, at) => [unrest(counter.values), -at, counter.name]);
    // Pressure and queues say more about lateness than what a program counts anyway.
    const weight = (name) => (/pressure|run_queue|throttl|major|dropped|reclaim/.test(name) ? 1 : 0);
    ranked.sort(
      (a, b) =>
        weight(b[2]) * (b[0] > 0 ? 1 : 0) - weight(a[2]) * (a[0] > 0 ? 1 : 0) || b[0] - a[0] || b[1] - a[1],
    );
    this.first = new Set(
      ranked
        .filter(([part]) => part > 0)
        .slice(0, MOST_AT_FIRST)
        .map(([, , name]) => name),
    );
    this.area = el("div", {});
    this.choice = el("div", { class: "choice" });
    const count = model.counters.length;
    this.element = el(
      "div",
      {},
      el(
        "h2",
        {},
        "Counters",
        el("span", { class: "note" }, `${count} recorded; the ones that moved most are shown`),
      ),
      this.area,
      el("details", {}, el("summary", {}, "Choose counters"), this.choice),
    );
  }

  update(view, width) {
    const shown = view.counters ?? this.first;
    const [from, to] = (view.zoom ?? [0, this.model.duration]).map((ns) => ns / 1e9);
    const look = JSON.stringify(this.model.look);
    for (const [name, { plot, drawn }] of this.plots) {
      if (shown.has(name) && drawn === look) continue;
      plot.destroy();
      this.plots.delete(name);
    }
    [...shown].forEach((name, at) => {
      const counter = this.model.counters.find((one) => one.name === name);
      if (!counter) return;
      if (!this.plots.has(name))
        this.plots.set(name, {
          plot: this.#plot(counter, width, CHART_LINES[at % CHART_LINES.length]),
          drawn: look,
        });
      const { plot } = this.plots.get(name);
      if (plot.width !== width) plot.setSize({ width, height: CHART_HEIGHT });
      if (plot.scales.x.min !== from || plot.scales.x.max !== to) plot.setScale("x", { min: from, max: to });
    });
    this.#offer(shown);
  }

  #offer(shown) {
    if (this.choice.childElementCount > 0) return;
    for (const { name } of this.model.counters) {
      const box = el("input", { type: "checkbox", onchange: () => this.#toggle(name, box.checked) });
      box.checked = shown.has(name);
      this.choice.append(el("label", { title: name }, box, ` ${name}`));
    }
  }

  #toggle(name, isShown) {
    const names = new Set(this.plots.keys());
    if (isShown) names.add(name);
    else names.delete(name);
    this.act.counters(names);
  }

  #plot(counter, width, stroke) {
    const { look } = this.model;
    const axis = {
      stroke: look.faint,
      grid: { stroke: look.line, width: 1 },
      ticks: { show: false },
      font: "11px system-ui",
    };
    const text = (value) => (Number.isFinite(value) ? valueText(value, counter.unit, counter.isRate) : "–");
    const highest = counter.values.reduce((most, value) => Math.max(most, value ?? -Infinity), -Infinity);
    const options = {
      width,
      height: CHART_HEIGHT,
      padding: [6, 0, 0, 0],
      cursor: { y: false, drag: { x: true, y: false, setScale: false } },
      legend: { show: true, live: true },
      scales: { x: { time: false, auto: false } },
      axes: [
        { ...axis, size: 4, values: () => [], grid: { show: false } },
        { ...axis, size: GUTTER, values: (plot, values) => values.map(text), space: 26 },
      ],
      series: [
        {
          label: "at",
          value: (plot, seconds) =>
            Number.isFinite(seconds) ? this.model.clock.text(seconds * 1e9, 3) : "–",
        },
        {
          label: counter.name,
          stroke,
          width: 1.3,
          // Without a pointer over the chart: the highest value of the recording.
          value: (plot, value) => (Number.isFinite(value) ? text(value) : `up to ${text(highest)}`),
          points: { show: false },
          paths: uPlot.paths.stepped({ align: 1 }),
        },
      ],
      hooks: { setSelect: [(plot) => this.#selected(plot)] },
    };
    return new uPlot(options, [counter.times, counter.values], this.area);
  }

  #selected(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const ns = (x) => Math.min(this.model.duration, Math.max(0, plot.posToVal(x, "x") * 1e9));
    this.act.select([ns(left), ns(left + width)]);
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  }
}
