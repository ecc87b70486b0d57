// SPDX-License-Identifier: Apache-2.0
// The ledger of a selection: the time of each thread in each state.
//
// Sums are recorded by bins of whole seconds. A selection that ends within a bin has the single stalls exactly,
// and of the bin's other time a share in proportion.

import { firstAbove, startsOf } from "./data.js";

/** States are numbered as `State::code`; this one is time that no state has. */
export const UNACCOUNTED = 31;
export const STATES = 32;
/** Shown in place of `blocked:poll` and others that sound idle, for waits with a meaning that is not: a row lock. */
export const MEANT = 30;
export const USER = 0;
export const KERNEL = 1;
const IRQ = 2;
export const FAULT_MINOR = 3;
export const FAULT_MAJOR = 4;
export const RUNNABLE = 5;
export const PREEMPTED = 6;
export const CPU = 7;
export const FIRST_BLOCKED = 16;

const SUMS = [
  "wall_ns",
  "on_cpu_ns",
  "irq_ns",
  "fault_minor_ns",
  "fault_major_ns",
  "fault_on_cpu_ns",
  "runnable_ns",
  "preempted_ns",
  "user_samples",
  "kernel_samples",
  "traced_user_ns",
  "traced_kernel_ns",
  "undivided_ns",
  "cpu_ns",
];
const [
  WALL,
  ON_CPU,
  IRQ_NS,
  MINOR,
  MAJOR,
  FAULT_ON_CPU,
  RUN,
  PREEMPT,
  USER_N,
  KERNEL_N,
  T_USER,
  T_KERNEL,
  UNDIVIDED,
  CPU_NS,
] = SUMS.keys();
const BLOCKED = SUMS.length;

export class Ledger {
  /** `threads` is of `threadsOf`; `reasons` are the names of the states from FIRST_BLOCKED on. */
  constructor(data, threads, reasons) {
    this.threads = threads;
    this.reasons = reasons.length;
    this.width = BLOCKED + reasons.length;
    this.edges = data.column("bin_edge");
    this.bins = this.edges.length - 1;
    this.bin = data.column("ledger_bin");
    this.thread = data.column("ledger_thread");
    this.starts = startsOf(this.bin, this.bins);
    const rows = this.bin.length;
    this.sums = new Float64Array(rows * this.width);
    [...SUMS, ...reasons.map((reason) => `blocked.${reason}`)].forEach((name, field) => {
      const values = data.column(`ledger.${name}`);
      for (let row = 0; row < values.length; row += 1) this.sums[row * this.width + field] = values[row];
    });
  }

  /** The bins that lie in a range as a whole: [first, end), which may be empty. */
  wholeBins(from, to) {
    const first = firstAbove(this.edges, from - 1);
    const end = firstAbove(this.edges, to) - 1;
    return [Math.min(first, this.bins), Math.max(first, end)];
  }

  /** The bin at a time. */
  binAt(ns) {
    return Math.min(this.bins - 1, Math.max(0, firstAbove(this.edges, ns) - 1));
  }

  /**
   * The time of all threads in each state, `STATES` numbers a thread, between two times. `isExact` is false
   * where the range ends within a bin.
   */
  states(from, to, stalls) {
    const out = new Float64Array(this.threads.count * STATES);
    const [first, end] = this.wholeBins(from, to);
    let isExact = true;
    if (end > first) this.#whole(first, end, out);
    const parts =
      end > first
        ? [
            [from, this.edges[first]],
            [this.edges[end], to],
          ]
        : [[from, to]];
    for (const [start, stop] of parts) {
      for (let at = start; at < stop;) {
        const bin = this.binAt(at);
        const until = Math.min(stop, this.edges[bin + 1]);
        if (until <= at) break;
        this.#part(bin, at, until, stalls, out);
        isExact = false;
        at = until;
      }
    }
    return { states: out, isExact };
  }

  #whole(first, end, out) {
    const { width } = this;
    const sums = new Float64Array(this.threads.count * width);
    for (let row = this.starts[first]; row < this.starts[end]; row += 1) {
      const to = this.thread[row] * width;
      const from = row * width;
      for (let field = 0; field < width; field += 1) sums[to + field] += this.sums[from + field];
    }
    const fallback = this.#processSamples((thread) => thread * width, sums);
    for (let thread = 0; thread < this.threads.count; thread += 1) {
      this.#account(sums, thread * width, fallback(thread), out, thread * STATES);
    }
  }

  /** The states of one row, as if the bin was all. */
  statesOfRow(row, out, at) {
    this.#account(this.sums, row * this.width, fallbackOf(this.threads.isKernel(this.thread[row])), out, at);
  }

  #part(bin, from, to, stalls, out) {
    const [edge, next] = [this.edges[bin], this.edges[bin + 1]];
    const rowOf = new Map();
    for (let row = this.starts[bin]; row < this.starts[bin + 1]; row += 1) rowOf.set(this.thread[row], row);
    const fallback = this.#processSamples(
      (thread) => (rowOf.has(thread) ? rowOf.get(thread) * this.width : -1),
      this.sums,
    );
    const whole = new Float64Array(STATES);
    const inBin = new Float64Array(STATES);
    const inRange = new Float64Array(STATES);
    for (const [thread, row] of rowOf) {
      whole.fill(0);
      inBin.fill(0);
      inRange.fill(0);
      this.#account(this.sums, row * this.width, fallback(thread), whole, 0);
      stalls.addParts(thread, edge, next, inBin, 0);
      stalls.addParts(thread, from, to, inRange, 0);
      let [rest, known] = [0, 0];
      for (let state = 0; state < STATES; state += 1) {
        whole[state] = Math.max(0, whole[state] - inBin[state]);
        rest += whole[state];
        known += inRange[state];
      }
      const lived = Math.min(to, this.threads.end[thread]) - Math.max(from, this.threads.start[thread]);
      const share = rest > 0 ? Math.min(1, Math.max(0, lived - known) / rest) : 0;
      const to0 = thread * STATES;
      for (let state = 0; state < STATES; state += 1)
        out[to0 + state] += inRange[state] + share * whole[state];
    }
  }

  /** The samples of each thread's process: they divide the time of threads that were never sampled. */
  #processSamples(place, sums) {
    const byPid = new Map();
    for (let thread = 0; thread < this.threads.count; thread += 1) {
      const at = place(thread);
      if (at < 0) continue;
      const pid = this.threads.pid[thread];
      const samples = byPid.get(pid) ?? [0, 0];
      samples[0] += sums[at + USER_N];
      samples[1] += sums[at + KERNEL_N];
      byPid.set(pid, samples);
    }
    return (thread) => {
      const samples = byPid.get(this.threads.pid[thread]);
      return samples && samples[0] + samples[1] > 0 ? samples : fallbackOf(this.threads.isKernel(thread));
    };
  }

  /** `wallprof_analysis::ledger::account` in JavaScript: adds the states of a row of sums to `out`. */
  #account(sums, at, fallback, out, to) {
    const wall = sums[at + WALL];
    if (wall === 0 && sums[at + ON_CPU] === 0) return;
    const claimed = sums[at + IRQ_NS] + sums[at + FAULT_ON_CPU];
    const running = Math.max(0, sums[at + ON_CPU] - claimed);
    const twice = Math.max(0, claimed - sums[at + ON_CPU]);
    const cpu = Math.min(sums[at + CPU_NS], running);
    const user = Math.min(sums[at + T_USER], running - cpu);
    const kernel = Math.min(sums[at + T_KERNEL], running - cpu - user);
    const rest = Math.max(0, running - cpu - user - kernel - sums[at + UNDIVIDED]);
    const own = sums[at + USER_N] + sums[at + KERNEL_N] > 0;
    const more = divided(
      rest,
      own ? sums[at + USER_N] : fallback[0],
      own ? sums[at + KERNEL_N] : fallback[1],
    );
    let total = 0;
    const add = (state, ns) => {
      out[to + state] += ns;
      total += ns;
    };
    add(USER, user + more);
    add(KERNEL, kernel + rest - more);
    add(CPU, cpu);
    add(IRQ, Math.max(0, sums[at + IRQ_NS] - twice));
    add(FAULT_MINOR, sums[at + MINOR]);
    add(FAULT_MAJOR, sums[at + MAJOR]);
    add(RUNNABLE, sums[at + RUN]);
    add(PREEMPTED, sums[at + PREEMPT]);
    for (let reason = 0; reason < this.reasons; reason += 1)
      add(FIRST_BLOCKED + reason, sums[at + BLOCKED + reason]);
    out[to + UNACCOUNTED] += Math.max(0, wall - total);
  }
}

function fallbackOf(isKernelThread) {
  return isKernelThread ? [0, 1] : [0, 0];
}

/** The user part of running time, rounded down as the report does. Without samples all is user time. */
export function divided(ns, user, kernel) {
  if (user + kernel === 0) return ns;
  if (kernel === 0) return ns;
  const product = ns * user;
  if (product < Number.MAX_SAFE_INTEGER) return Math.floor(product / (user + kernel));
  return Number((BigInt(Math.round(ns)) * BigInt(user)) / BigInt(user + kernel));
}

/** The threads of the page, by their index. */
export function threadsOf(data) {
  const { head, column } = data;
  const flags = column("thread_flags");
  const names = column("thread_comm");
  const processes = column("thread_process");
  const cgroups = column("thread_cgroup");
  return {
    count: flags.length,
    id: column("thread_id"),
    pid: column("thread_pid"),
    tid: column("thread_tid"),
    start: column("thread_start"),
    end: column("thread_end"),
    name: (thread) => head.strings[names[thread]] || "(unnamed)",
    process: (thread) => head.strings[processes[thread]] || "(unnamed)",
    cgroup: (thread) => head.strings[cgroups[thread]],
    isIdle: (thread) => (flags[thread] & 1) !== 0,
    isKernel: (thread) => (flags[thread] & 2) !== 0,
  };
}
