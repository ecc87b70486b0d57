// SPDX-License-Identifier: Apache-2.0
// The single stalls, and the states that each was in.

import { firstAbove, grouped } from "./data.js";
import { FAULT_MAJOR, FAULT_MINOR, MEANT, PREEMPTED, RUNNABLE, STATES } from "./ledger.js";

const VOLUNTARY = 1;
const OPEN = 2;
const FAULT = 4;
const BY_INTERRUPT = 8;
const HAS_MEANING = 16;

export class Stalls {
  constructor(data, threadCount) {
    const { head, column } = data;
    this.strings = head.strings;
    this.reasons = new Map(head.reasons.map((reason) => [reason.code, reason]));
    this.id = column("stall_id");
    this.count = this.id.length;
    this.start = column("stall_start");
    this.duration = column("stall_duration");
    this.runnable = column("stall_runnable");
    this.reason = column("stall_reason");
    this.thread = column("stall_thread");
    this.flags = column("stall_flags");
    this.stack = column("stall_stack");
    this.waker = column("stall_waker");
    this.wakerStack = column("stall_waker_stack");
    this.owner = column("stall_owner");
    this.asked = column("stall_asked");
    this.cpu = column("stall_cpu");
    const notLate = column("stall_not_late");
    const neither = column("stall_neither");
    this.late = this.duration.map((ns, stall) => ns - notLate[stall]);
    this.blocked = this.duration.map((ns, stall) => Math.max(0, ns - neither[stall] - this.runnable[stall]));
    this.texts = {
      meaning: column("stall_meaning"),
      site: column("stall_site"),
      lock: column("stall_lock"),
      syscall: column("stall_syscall"),
      file: column("stall_file"),
      trace: column("stall_trace"),
    };
    const voluntary = new Set(
      head.states.filter((state) => state.class === "voluntary").map((state) => state.code),
    );
    this.isMeant = Uint8Array.from(this.id, (_, stall) =>
      this.flags[stall] & HAS_MEANING && !this.isVoluntary(stall) && voluntary.has(this.state(stall)) ? 1 : 0,
    );
    this.byThread = grouped(this.thread, threadCount);
    this.latestEnd = this.#latestEnds();
    const ran = column("stall_ran");
    this.ranStart = new Uint32Array(this.count + 1);
    for (let stall = 0; stall < this.count; stall += 1)
      this.ranStart[stall + 1] = this.ranStart[stall] + ran[stall];
    this.ranThread = column("ran_thread");
    this.ranNs = column("ran_ns");
    this.mentions = {
      thread: column("mention_thread"),
      pid: column("mention_pid"),
      tid: column("mention_tid"),
      name: column("mention_name"),
    };
  }

  /** Of each thread's stalls in their order: the latest end so far. They may lie within each other. */
  #latestEnds() {
    const ends = new Float64Array(this.count);
    const { starts, rows } = this.byThread;
    for (let thread = 0; thread + 1 < starts.length; thread += 1) {
      let latest = -Infinity;
      for (let at = starts[thread]; at < starts[thread + 1]; at += 1) {
        latest = Math.max(latest, this.end(rows[at]));
        ends[at] = latest;
      }
    }
    return ends;
  }

  end(stall) {
    return this.start[stall] + this.duration[stall];
  }

  /** When the thread began to be late: a wait with a timeout that was overslept is late from the timeout on. */
  lateFrom(stall) {
    return this.end(stall) - this.late[stall];
  }

  isVoluntary(stall) {
    return (this.flags[stall] & VOLUNTARY) !== 0;
  }

  isOpen(stall) {
    return (this.flags[stall] & OPEN) !== 0;
  }

  isFault(stall) {
    return (this.flags[stall] & FAULT) !== 0;
  }

  text(kind, stall) {
    return this.strings[this.texts[kind][stall]] ?? "";
  }

  /** The state of its time: `blocked:lock` for `lock`. */
  state(stall) {
    return this.reasons.get(this.reason[stall])?.state ?? RUNNABLE;
  }

  /** The state that stands for one of a stall's states in colours. */
  shown(stall, state = this.state(stall)) {
    return this.isMeant[stall] && state === this.state(stall) ? MEANT : state;
  }

  /** The states of a ledger between two times, with the time of waits that have a meaning as `MEANT`. */
  shownStates(states, from, to) {
    const shown = states.slice();
    const names = new Map();
    for (let stall = 0; stall < this.count && this.start[stall] < to; stall += 1) {
      if (!this.isMeant[stall] || this.end(stall) <= from) continue;
      const base = this.thread[stall] * STATES;
      const ns = Math.min(this.wokenAt(stall), to) - Math.max(this.start[stall], from);
      const moved = Math.max(0, Math.min(ns, shown[base + this.state(stall)]));
      shown[base + this.state(stall)] -= moved;
      shown[base + MEANT] += moved;
      const name = this.text("meaning", stall);
      names.set(name, (names.get(name) ?? 0) + moved);
    }
    return { shown, meanings: [...names].sort((a, b) => b[1] - a[1]).map(([name]) => name) };
  }

  /** `row lock of postgresql`, else `lock`, `fault:major`. */
  what(stall) {
    const name = this.reasons.get(this.reason[stall])?.name ?? "unknown";
    return this.text("meaning", stall) || (this.isFault(stall) ? `fault:${name}` : name);
  }

  /** When it was woken, or got its page: what follows was spent waiting for a CPU. */
  wokenAt(stall) {
    const state = this.state(stall);
    if (state === PREEMPTED) return this.end(stall);
    if (state === FAULT_MINOR || state === FAULT_MAJOR)
      return Math.max(this.start[stall], this.end(stall) - this.runnable[stall]);
    return Math.min(this.end(stall), this.start[stall] + this.blocked[stall]);
  }

  /** A thread of `mention`: `{ index, name, tid, pid }`, with index -1 where it was not recorded; null for 0. */
  mention(mention) {
    if (!mention) return null;
    const { thread, pid, tid, name } = this.mentions;
    return {
      index: thread[mention] - 1,
      pid: pid[mention],
      tid: tid[mention],
      name: this.strings[name[mention]] || "(unnamed)",
    };
  }

  wakerText(stall) {
    const waker = this.mention(this.waker[stall]);
    if (waker) return waker.name;
    return this.flags[stall] & BY_INTERRUPT ? "an interrupt" : "";
  }

  /** The threads that ran on its CPU meanwhile: `[mention, ns]`. */
  ranInstead(stall) {
    const ran = [];
    for (let at = this.ranStart[stall]; at < this.ranStart[stall + 1]; at += 1) {
      ran.push([this.mention(this.ranThread[at]), this.ranNs[at]]);
    }
    return ran;
  }

  /** Calls `each` for the stalls of a thread that overlap a range, in the order of their start. */
  overlapping(thread, from, to, each) {
    const { starts, rows } = this.byThread;
    const end = starts[thread + 1];
    for (let at = firstAbove(this.latestEnd, from, starts[thread], end); at < end; at += 1) {
      const stall = rows[at];
      if (this.start[stall] >= to) break;
      if (this.end(stall) > from) each(stall);
    }
  }

  /** Calls `each(state, start, end)` for the states of a stall. A `runnable` one's state before is not known. */
  parts(stall, each) {
    const [start, end] = [this.start[stall], this.end(stall)];
    const woken = this.wokenAt(stall);
    const state = this.state(stall);
    if (state !== RUNNABLE && woken > start) each(state, start, woken);
    if (end > woken) each(RUNNABLE, woken, end);
  }

  /** Adds the time of a thread's stalls within a range to the states that start at `out[base]`. */
  addParts(thread, from, to, out, base) {
    this.eachPart(thread, from, to, (state, ns) => {
      out[base + state] += ns;
    });
  }

  /** Calls `each(state, ns, stall)`. A wait within a page fault is part of the fault. */
  eachPart(thread, from, to, each) {
    let faultEnd = -Infinity;
    this.overlapping(thread, from, to, (stall) => {
      if (this.isFault(stall)) faultEnd = Math.max(faultEnd, this.end(stall));
      else if (this.start[stall] < faultEnd) return;
      this.parts(stall, (state, start, end) => {
        const ns = Math.min(end, to) - Math.max(start, from);
        if (ns > 0) each(state, ns, stall);
      });
    });
  }

  /** The stall with this id, or -1. Ids are not in the order of starts. */
  find(id) {
    return this.id.indexOf(id);
  }
}
