// SPDX-License-Identifier: Apache-2.0
// Tests of the modules that need no browser: node --test crates/page/web/tests

import assert from "node:assert/strict";
import test from "node:test";

import { Clock, countedText, percentText, tickText, timeText, timeTicks, valueText } from "../format.js";
import { decodeData, firstAbove, grouped } from "../data.js";
import { Ledger, MEANT, RUNNABLE, STATES, UNACCOUNTED, USER, divided } from "../ledger.js";
import { Stalls } from "../stalls.js";
import { FlameTree, Stacks, Weights } from "../stacks.js";
import { emptyView, fragmentOf, viewOfFragment } from "../selection.js";
import { LATENCY_ROWS, latencyGrid, latencyOfRow, latencyRow, offsetGrid } from "../heat.js";
import { inkOn, luminance, palette } from "../colours.js";

const LOCK = 16;
const POLL = 18;
const S = 1e9;

const HEAD_STATES = [
  { code: USER, name: "user", class: "running" },
  { code: 1, name: "kernel", class: "running" },
  { code: RUNNABLE, name: "runnable", class: "late" },
  { code: LOCK, name: "blocked:lock", class: "late" },
  { code: 17, name: "blocked:wait", class: "voluntary" },
  { code: POLL, name: "blocked:poll", class: "voluntary" },
];

/** Data as `decodeData` gives it, of arrays. */
function dataOf(columns, head = {}) {
  const reasons = [
    { code: 1, name: "runnable", state: RUNNABLE },
    { code: 2, name: "minor", state: 3 },
    { code: 16, name: "lock", state: LOCK },
    { code: 18, name: "poll", state: POLL },
  ];
  const whole = {
    strings: ["", "main", "work", "[blocked:lock]", "[user]", "row lock", "keeper"],
    states: HEAD_STATES,
    reasons,
    ...head,
  };
  return {
    head: whole,
    column: (name, zeros = 0) => Float64Array.from(columns[name] ?? new Array(zeros).fill(0)),
  };
}

/** Stalls of [thread, start, blocked, runnable, reason, flags, meaning]. */
function stallsOf(rows, threadCount = 2) {
  const column = (at) => rows.map((row) => row[at] ?? 0);
  return new Stalls(
    dataOf({
      stall_id: rows.map((_, at) => at + 10),
      stall_thread: column(0),
      stall_start: column(1),
      stall_duration: rows.map((row) => row[2] + row[3]),
      stall_runnable: column(3),
      stall_not_late: rows.map(() => 0),
      stall_neither: rows.map(() => 0),
      stall_reason: column(4),
      stall_flags: column(5),
      stall_meaning: column(6),
      stall_site: rows.map(() => 0),
      stall_stack: rows.map(() => 0),
      stall_ran: rows.map(() => 0),
    }),
    threadCount,
  );
}

const THREADS = { count: 2, pid: [7, 7], start: [0, 0], end: [2 * S, 2 * S], isKernel: () => false };

/** Thread 0 runs for 0.4 s of each second and waits for a lock; thread 1 runs unsampled. */
function ledgerOf() {
  return new Ledger(
    dataOf({
      bin_edge: [0, S, 2 * S],
      ledger_bin: [0, 0, 1, 1],
      ledger_thread: [0, 1, 0, 1],
      "ledger.wall_ns": [S, S, S, S],
      "ledger.on_cpu_ns": [0.4 * S, S, 0.4 * S, S],
      "ledger.user_samples": [3, 0, 0, 0],
      "ledger.kernel_samples": [1, 0, 0, 0],
      "ledger.blocked.lock": [0.5 * S, 0, 0.6 * S, 0],
    }),
    THREADS,
    ["lock", "wait", "poll"],
  );
}

const of = (states, thread, state) => states[thread * STATES + state];

test("numbers have three digits and a unit", () => {
  assert.deepEqual([999, 5.271e6, 12.34e9, 3720e9].map(timeText), [
    "999 ns",
    "5.27 ms",
    "12.3 s",
    "1 h 2 min",
  ]);
  assert.deepEqual([999_500, 999.6e6].map(timeText), ["1.00 ms", "1.00 s"]);
  assert.deepEqual([countedText(1, "stall"), countedText(12345, "stall")], ["1 stall", "12,345 stalls"]);
  assert.deepEqual([percentText(1, 3000), percentText(1, 3), percentText(0, 0)], ["<0.1 %", "33 %", "0 %"]);
  assert.deepEqual(
    [valueText(2 ** 21, "bytes", false), valueText(3.5e8, "ns", true), valueText(1234, "count", true)],
    ["2.00 MiB", "350 ms/s", "1,234/s"],
  );
});

test("ticks are round and few", () => {
  assert.deepEqual(timeTicks(0, 10e6, 5), { step: 2e6, ticks: [0, 2e6, 4e6, 6e6, 8e6, 10e6] });
  assert.equal(timeTicks(0, 3600e9, 7).step, 600e9);
  assert.deepEqual(
    [tickText(1.25e9, 1e7), tickText(2e6, 1e6), tickText(3723e9, 60e9)],
    ["1.25 s", "2 ms", "1:02:03"],
  );
});

test("a clock that steps is read by its last anchor", () => {
  const clock = new Clock([
    [0, 1000, 500_000],
    [2 * S, 90_000, 0],
  ]);
  assert.deepEqual(clock.at(1_000_000), [1001, 500_000]);
  assert.deepEqual(clock.second(2 * S + 5), [90, 5]);
  assert.equal(new Clock([]).text(1_500_000, 6), "+0.001500 s");
});

test("columns are decoded", () => {
  const head = JSON.stringify({ columns: { a: ["unsigned", 3, 0], b: ["delta", 3, 4] } });
  const bytes = [head.length, 0, 0, 0, ...new TextEncoder().encode(head), 0, 127, 0x80, 1, 0xc8, 1, 1, 4];
  const { column } = decodeData(Uint8Array.from(bytes));
  assert.deepEqual([...column("a")], [0, 127, 128]);
  assert.deepEqual([...column("b")], [100, 99, 101]);
  assert.deepEqual([...column("none", 2)], [0, 0]);
});

test("rows are grouped in their order, and found", () => {
  const { starts, rows } = grouped([1, 0, 1], 2);
  assert.deepEqual(
    [[...starts], [...rows]],
    [
      [0, 1, 3],
      [1, 0, 2],
    ],
  );
  assert.deepEqual([firstAbove([1, 3, 5], 3), firstAbove([], 1), firstAbove([1, 2], 9)], [2, 0, 2]);
});

test("whole bins have the ledger of a report", () => {
  const { states, isExact } = ledgerOf().states(0, 2 * S, stallsOf([]));
  assert.equal(isExact, true);
  // All samples of the thread divide its running time of both seconds.
  assert.deepEqual([of(states, 0, USER), of(states, 0, 1)], [0.6 * S, 0.2 * S]);
  // Thread 1 was not sampled: its process divides.
  assert.deepEqual([of(states, 1, USER), of(states, 1, 1)], [1.5 * S, 0.5 * S]);
  assert.deepEqual([of(states, 0, LOCK), of(states, 0, UNACCOUNTED)], [1.1 * S, 0.1 * S]);
});

test("part of a bin has stalls exactly, the rest in proportion, and adds up to its time", () => {
  // 0.3 s for the lock in the first second; the other 0.2 s of it were short waits.
  const stalls = stallsOf([[0, 0.1 * S, 0.3 * S, 0, 16]]);
  const { states, isExact } = ledgerOf().states(0, 0.3 * S, stalls);
  assert.equal(isExact, false);
  let sum = 0;
  for (let state = 0; state < STATES; state += 1) sum += of(states, 0, state);
  assert.ok(Math.abs(sum - 0.3 * S) < 1, String(sum));
  // 0.1 s of 0.7 s outside of the stall.
  const share = 0.1 / 0.7;
  assert.ok(Math.abs(of(states, 0, LOCK) - (0.2 * S + share * 0.2 * S)) < 1);
  const [left, right] = [
    ledgerOf().states(0, 0.3 * S, stalls).states,
    ledgerOf().states(0.3 * S, S, stalls).states,
  ];
  assert.ok(Math.abs(of(left, 0, LOCK) + of(right, 0, LOCK) - 0.5 * S) < 1, "two parts are the bin");
});

test("running time is divided exactly where floats are not exact", () => {
  assert.equal(
    divided(36_000_000_000_001, 999_999, 1),
    Number((36_000_000_000_001n * 999_999n) / 1_000_000n),
  );
  assert.equal(divided(5, 0, 0), 5);
});

test("stalls that overlap a range are found though an earlier one lasts longer", () => {
  const stalls = stallsOf([
    [0, 0, 100, 0, 16],
    [0, 10, 5, 0, 16],
    [1, 20, 5, 0, 16],
    [0, 200, 5, 0, 16],
  ]);
  const found = [];
  stalls.overlapping(0, 50, 60, (stall) => found.push(stall));
  assert.deepEqual(found, [0]);
});

test("an overslept wait is late from its timeout on", () => {
  const stalls = stallsOf([[0, 100, 70, 30, 18]]);
  assert.equal(stalls.lateFrom(0), 100);
  stalls.late[0] = 20;
  assert.equal(stalls.lateFrom(0), 180);
});

test("a wait is blocked until it is woken, then runnable; within a fault it is the fault's", () => {
  const stalls = stallsOf([
    [0, 0, 70, 30, 16],
    [1, 0, 100, 0, 2, 4],
    [1, 10, 50, 0, 16],
  ]);
  const out = new Float64Array(2 * STATES);
  stalls.addParts(0, 60, 90, out, 0);
  stalls.addParts(1, 0, 100, out, STATES);
  assert.deepEqual([out[LOCK], out[RUNNABLE]], [10, 20]);
  assert.deepEqual([out[STATES + 3], out[STATES + LOCK]], [100, 0]);
});

test("a poll that means a row lock is shown apart, and nothing is lost", () => {
  const stalls = stallsOf([
    [0, 0, 70, 30, 18, 16, 5],
    [0, 200, 50, 0, 18, 1 | 16, 5],
  ]);
  const states = new Float64Array(2 * STATES);
  states[POLL] = 120;
  const { shown, meanings } = stalls.shownStates(states, 0, 300);
  assert.deepEqual([shown[POLL], shown[MEANT], states[POLL]], [50, 70, 120]);
  assert.deepEqual(meanings, ["row lock"]);
  assert.deepEqual([stalls.shown(0), stalls.shown(0, RUNNABLE), stalls.shown(1)], [MEANT, RUNNABLE, POLL]);
});

/** main > work > [blocked:lock] and main > [user]. */
const TREE = {
  function_name: [0, 1, 2, 3, 4],
  function_module: [0, 0, 0, 0, 0],
  function_kind: [2, 0, 0, 32 + LOCK, 32 + USER],
  node_up: [0, 1, 1, 1, 3],
  node_function: [0, 1, 2, 3, 4],
};

function weighed(from, to, pick = () => true) {
  const data = dataOf({
    ...TREE,
    weight_edge: [0, S, 2 * S],
    weight_bin: [0, 0, 1, 1],
    weight_thread: [0, 0, 0, 0],
    weight_node: [3, 4, 3, 4],
    weight_ns: [0.5 * S, 0.4 * S, 0.6 * S, 0.4 * S],
  });
  const stacks = new Stacks(data);
  const stalls = stallsOf([[0, 0.1 * S, 0.3 * S, 0, 16]]);
  stacks.setMeant(stalls);
  const stateNames = new Array(STATES).fill("x");
  const context = { stacks, stalls, ledger: ledgerOf(), stateNames };
  return { stacks, own: new Weights(data).ofSelection(from, to, pick, context) };
}

test("the flame graph of a selection adds up to its ledger", () => {
  for (const [from, to] of [
    [0, 2 * S],
    [0, S],
    [0.05 * S, 0.2 * S],
    [0.9 * S, 1.3 * S],
  ]) {
    const { own } = weighed(from, to, (thread) => thread === 0);
    const sum = own.reduce((a, b) => a + b, 0);
    let expected = 0;
    const { states } = ledgerOf().states(from, to, stallsOf([[0, 0.1 * S, 0.3 * S, 0, 16]]));
    for (let state = 0; state < STATES; state += 1) expected += of(states, 0, state);
    // Unaccounted time of whole bins is a row of its own, which this data does not have.
    const unaccounted = from === 0 ? of(states, 0, UNACCOUNTED) : 0;
    // Kernel time has no row here: all samples of running time are in [user].
    assert.ok(Math.abs(sum - expected + unaccounted) < 2, `${from} to ${to}: ${sum} and ${expected}`);
  }
});

test("a tree is read from the root or from the leaf, with equal totals", () => {
  const { stacks, own } = weighed(0, 2 * S, (thread, state) => thread === 0 && state === LOCK);
  const [plain, reversed] = [FlameTree.of(stacks, own, false), FlameTree.of(stacks, own, true)];
  assert.ok(Math.abs(plain.totals[0] - 1.1 * S) < 1 && Math.abs(reversed.totals[0] - 1.1 * S) < 1);
  const names = (tree) =>
    tree
      .layout(0, 0.01, (number) => stacks.functionName(number))
      .map(({ node }) => stacks.functionName(tree.functions[node]));
  assert.deepEqual(names(plain), ["", "main", "work", "[blocked:lock]"]);
  assert.deepEqual(names(reversed), ["", "[blocked:lock]", "work", "main"]);
});

test("a view comes back from its fragment", () => {
  const limits = { duration: 10 * S, threads: 5, findings: 2 };
  const view = {
    ...emptyView(),
    range: [1000, 2000],
    zoom: [0, 5000],
    threads: new Set([1, 4]),
    states: new Set([16]),
    text: "a b&c=d,é",
    stall: 218,
    finding: 1,
    sort: "time",
    ascending: true,
    all: true,
    idle: true,
    reversed: true,
    search: "x",
    counters: new Set(["a,b", "c"]),
    opens: false,
  };
  assert.deepEqual(viewOfFragment(`#${fragmentOf(view)}`, limits), view);
  assert.equal(fragmentOf(emptyView()), "");
});

test("the link of an exemplar opens its stall", () => {
  const limits = { duration: 1000, threads: 5, findings: 0 };
  const view = viewOfFragment("#stall=42", limits);
  assert.deepEqual(view, { ...emptyView(), stall: 42, opens: true });
  assert.equal(fragmentOf(view), "id=42");
});

test("a damaged fragment is a view of everything", () => {
  const limits = { duration: 1000, threads: 5, findings: 0 };
  for (const text of [
    "#t=5-1&z=a-b&th=9,x&s=99&id=-1&f=0&sort=evil",
    "#stall=4x",
    "#%%%&&=&q=%E0%A4%A",
    "#__proto__=1&constructor=x",
  ]) {
    assert.deepEqual(viewOfFragment(text, limits), emptyView());
  }
});

test("heat maps count each stall once", () => {
  const stalls = stallsOf([
    [0, 0, 1_000_000, 0, 16],
    [0, 5_000_000, 1_000, 0, 16],
    [1, 1.5 * S, 10, 0, 16],
  ]);
  const cells = latencyGrid(stalls, [0, 1, 2], 0, 2 * S, 10);
  assert.equal(
    cells.reduce((a, b) => a + b, 0),
    3,
  );
  assert.deepEqual([latencyRow(0), latencyRow(1e30)], [0, LATENCY_ROWS - 1]);
  assert.ok(latencyOfRow(latencyRow(5e6)) <= 5e6 && latencyOfRow(latencyRow(5e6) + 1) > 5e6);
  const grid = offsetGrid(stalls, [0, 1, 2], 0, 2 * S, new Clock([]), 100, 10);
  assert.deepEqual([grid.columns, grid.cells[0], grid.cells[10 + 5]], [2, 1_001_000, 10]);
});

test("colours of states differ, and labels on them are readable", () => {
  for (const theme of ["light", "dark"]) {
    const colours = palette(HEAD_STATES, theme, STATES);
    const shown = [...HEAD_STATES.map((state) => state.code), MEANT].map((code) => colours[code]);
    assert.equal(new Set(shown).size, shown.length, shown.join());
    for (const colour of shown) {
      const [light, dark] = [luminance(colour), luminance(inkOn(colour))].sort((a, b) => b - a);
      assert.ok((light + 0.05) / (dark + 0.05) >= 4, `${colour} with ${inkOn(colour)}`);
    }
  }
});
