// SPDX-License-Identifier: Apache-2.0
// The table of stalls: only the rows that are seen are elements.

import { countText, countedText, timeText } from "./format.js";
import { el } from "./dom.js";

const TABLE_ROW = 22;
const TABLE_HEIGHT = 330;
/** A taller element than this is cut by browsers: rows are then placed in proportion. */
const MOST_PIXELS = 8_000_000;

const TABLE_COLUMNS = [
  {
    key: "time",
    title: "time",
    width: "118px",
    text: (model, stall) => model.clock.text(model.stalls.start[stall]),
  },
  {
    key: "thread",
    title: "thread",
    width: "minmax(90px, 1fr)",
    text: (model, stall) => model.threads.name(model.stalls.thread[stall]),
  },
  {
    key: "what",
    title: "waits for",
    width: "minmax(96px, 1.1fr)",
    text: (model, stall) => model.stalls.what(stall),
  },
  {
    key: "late",
    title: "late",
    width: "76px",
    number: true,
    text: (model, stall) => (model.stalls.isVoluntary(stall) ? "–" : timeText(model.stalls.late[stall])),
  },
  {
    key: "duration",
    title: "duration",
    width: "84px",
    number: true,
    text: (model, stall) => timeText(model.stalls.duration[stall]) + (model.stalls.isOpen(stall) ? " +" : ""),
  },
  {
    key: "place",
    title: "place",
    width: "minmax(160px, 3fr)",
    text: (model, stall) => model.stalls.text("site", stall),
  },
  {
    key: "waker",
    title: "woken by",
    width: "minmax(80px, 1fr)",
    text: (model, stall) => model.stalls.wakerText(stall),
  },
  {
    key: "owner",
    title: "lock held by",
    width: "minmax(80px, 1fr)",
    text: (model, stall) => model.stalls.mention(model.stalls.owner[stall])?.name ?? "",
  },
];

const TABLE_NUMBERS = {
  time: (model) => model.stalls.start,
  late: (model) => model.stalls.late.map((ns, stall) => (model.stalls.isVoluntary(stall) ? -1 : ns)),
  duration: (model) => model.stalls.duration,
};

/** All stalls in the order of a column, ascending; equal ones by time. */
export function orderBy(model, key) {
  const count = model.stalls.count;
  const order = Uint32Array.from({ length: count }, (_, stall) => stall);
  if (TABLE_NUMBERS[key]) {
    const values = TABLE_NUMBERS[key](model);
    return order.sort((a, b) => values[a] - values[b] || a - b);
  }
  const { text } = TABLE_COLUMNS.find((column) => column.key === key);
  const texts = Array.from({ length: count }, (_, stall) => text(model, stall));
  const ranks = new Map([...new Set(texts)].sort().map((one, rank) => [one, rank]));
  const rankOf = texts.map((one) => ranks.get(one));
  return order.sort((a, b) => rankOf[a] - rankOf[b] || a - b);
}

/** The stalls of a view in the order of the table. `isPicked` says what is selected. */
export function sortedStalls(model, view, orders, isPicked) {
  if (!orders.has(view.sort)) orders.set(view.sort, orderBy(model, view.sort));
  const order = orders.get(view.sort);
  const rows = new Uint32Array(order.length);
  let count = 0;
  for (let at = 0; at < order.length; at += 1) {
    const stall = order[view.ascending ? at : order.length - 1 - at];
    if (isPicked(stall)) rows[count++] = stall;
  }
  return rows.subarray(0, count);
}

/** A test of the words of a filter: each must be in a text of the stall. Texts are looked at once. */
export function textFilter(model, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (wanted.length === 0) return null;
  const { stalls, stacks } = model;
  const known = new Map();
  const stackText = (node) => {
    let text = known.get(node);
    if (text === undefined) {
      text = [...stacks.path(node)]
        .map((one) => stacks.name(one))
        .join(" ")
        .toLowerCase();
      known.set(node, text);
    }
    return text;
  };
  return (stall) => {
    const row = TABLE_COLUMNS.filter((column) => !column.number)
      .map((column) => column.text(model, stall))
      .join(" ");
    const others = ["syscall", "file", "trace"].map((kind) => stalls.text(kind, stall)).join(" ");
    const text = `${row} ${others}`.toLowerCase();
    return wanted.every((word) => text.includes(word) || stackText(stalls.stack[stall]).includes(word));
  };
}

export class Table {
  /** `act` has `stall(index)`, `sort(key)`, `text(words)` and `all()`. */
  constructor(model, act) {
    Object.assign(this, { model, act, rows: new Uint32Array(0), orders: new Map() });
    this.columns = TABLE_COLUMNS.map((column) => column.width).join(" ");
    this.note = el("span", { class: "note", id: "stall-count" });
    this.filter = el("input", {
      type: "search",
      id: "filter",
      placeholder: "Filter: thread, function, reason …  ( / )",
      "aria-label": "Filter stalls",
    });
    this.filter.addEventListener("input", () => act.text(this.filter.value));
    this.all = el("button", { id: "all", onclick: () => act.all() }, "voluntary waits, too");
    this.titles = el("div", { class: "titles", role: "row" });
    this.titles.style.gridTemplateColumns = this.columns;
    this.set = el("div", { class: "rowset" });
    this.box = el(
      "div",
      { class: "table", tabindex: "0", role: "table", "aria-label": "Stalls" },
      this.titles,
      this.set,
    );
    this.box.addEventListener("scroll", () => this.#show());
    this.element = el("div", {}, el("h2", {}, "Stalls", this.filter, this.all, this.note), this.box);
  }

  update(view, rows) {
    Object.assign(this, { view, rows });
    if (this.filter !== document.activeElement) this.filter.value = view.text;
    this.all.setAttribute("aria-pressed", view.all);
    let late = 0;
    for (const stall of rows)
      if (!this.model.stalls.isVoluntary(stall)) late += this.model.stalls.late[stall];
    this.note.textContent = `${countText(rows.length)} of ${countText(this.model.stalls.count)} shown, ${timeText(late)} late in all`;
    this.note.dataset.count = rows.length;
    this.note.dataset.lateNs = Math.round(late);
    this.#drawTitles();
    this.pixels = Math.min(MOST_PIXELS, rows.length * TABLE_ROW);
    this.box.style.height = `${Math.min(TABLE_HEIGHT, Math.max(3, rows.length + 2) * TABLE_ROW)}px`;
    this.set.style.height = `${this.pixels}px`;
    this.#show();
  }

  #emptyText() {
    const { stalls, head } = this.model;
    if (stalls.count === 0)
      return `No wait of this recording lasted ${timeText(head.recording.min_stall_ns)}: shorter ones are in the sums.`;
    const voluntary = stalls.count - this.model.lateStalls.length;
    const hidden = this.view.all || voluntary === 0 ? "" : `; ${countedText(voluntary, "voluntary wait")} of the recording are not shown`;
    return `No stall is in this selection${hidden}.`;
  }

  #drawTitles() {
    const arrow = this.view.ascending ? " ▲" : " ▼";
    this.titles.replaceChildren(
      ...TABLE_COLUMNS.map(({ key, title, number }) =>
        el(
          "button",
          { class: number ? "number" : null, "data-sort": key, onclick: () => this.act.sort(key) },
          title + (key === this.view.sort ? arrow : ""),
        ),
      ),
    );
  }

  #show() {
    const scale = this.pixels / Math.max(1, this.rows.length * TABLE_ROW);
    const top = this.box.scrollTop / scale;
    const first = Math.max(0, Math.floor(top / TABLE_ROW) - 2);
    const end = Math.min(this.rows.length, first + Math.ceil(this.box.clientHeight / TABLE_ROW) + 5);
    const elements = [];
    for (let at = first; at < end; at += 1)
      elements.push(this.#row(this.rows[at], this.box.scrollTop + at * TABLE_ROW - top));
    if (this.rows.length === 0) elements.push(el("div", { class: "empty" }, this.#emptyText()));
    this.set.replaceChildren(...elements);
  }

  #row(stall, top) {
    const { model, view, act } = this;
    const isSelected = view.stall === model.stalls.id[stall];
    const cells = TABLE_COLUMNS.map(({ text, number }) => {
      const shown = text(model, stall);
      return el("span", { class: number ? "number" : null, title: shown, role: "cell" }, shown);
    });
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = model.colours[model.stalls.shown(stall)];
    swatch.style.display = "inline-block";
    swatch.style.marginRight = "5px";
    cells[2].prepend(swatch);
    const row = el(
      "div",
      {
        class: "row",
        role: "row",
        "aria-selected": String(isSelected),
        "data-stall": model.stalls.id[stall],
        onclick: () => act.stall(stall),
      },
      cells,
    );
    row.style.gridTemplateColumns = this.columns;
    row.style.top = `${top}px`;
    return row;
  }

  reveal(stall) {
    const at = this.rows.indexOf(stall);
    if (at < 0) return;
    const scale = this.pixels / (this.rows.length * TABLE_ROW);
    const top = at * TABLE_ROW * scale;
    if (top < this.box.scrollTop || top > this.box.scrollTop + this.box.clientHeight - 60)
      this.box.scrollTop = Math.max(0, top - 80);
  }
}
