// SPDX-License-Identifier: Apache-2.0
// The page: reads the data, keeps what the reader looks at, and draws everything again when that changes.

import { Clock, countText, countedText, percentText, timeText } from "./format.js";
import { loadData } from "./data.js";
import { Ledger, MEANT, STATES, UNACCOUNTED, threadsOf } from "./ledger.js";
import { Stalls } from "./stalls.js";
import { Stacks, Weights } from "./stacks.js";
import { emptyView, fragmentOf, viewOfFragment } from "./selection.js";
import { inkOn, palette } from "./colours.js";
import { Tip, byId, el, themeColours } from "./dom.js";
import { Timeline } from "./timeline.js";
import { Charts, countersOf } from "./charts.js";
import { Maps } from "./maps.js";
import { Table, sortedStalls, textFilter } from "./table.js";
import { FlameGraph } from "./flame.js";
import { spansSection } from "./spans.js";

const CLASSES = ["running", "late", "peer", "voluntary"];
/** Fewer on a low screen: the threads must be seen, too. */
const FINDINGS_AT_FIRST = window.innerHeight < 800 ? 2 : 3;
/** The fragment follows that long after the last change: browsers limit how often it may change. */
const FRAGMENT_DELAY_MS = 250;

/** Everything that is computed once from the data. */
function modelOf(data) {
  const { head, column } = data;
  const threads = threadsOf(data);
  const stalls = new Stalls(data, threads.count);
  const stateNames = new Array(STATES).fill("unknown");
  for (const { code, name } of head.states) stateNames[code] = name;
  stateNames[UNACCOUNTED] = "unaccounted";
  stateNames[MEANT] = "meaning";
  const ofClass = (one) => head.states.filter((state) => state.class === one).map((state) => state.code);
  const [running, late, peer, voluntary] = CLASSES.map(ofClass);
  const reasons = head.states
    .filter((state) => state.code >= 16)
    .map((state) => state.name.replace("blocked:", ""));
  const [markTimes, markDurations, markTexts] = ["mark_time", "mark_duration", "mark_text"].map((name) =>
    column(name),
  );
  const model = {
    head,
    threads,
    stalls,
    stateNames,
    order: [...running, ...late, MEANT, ...peer, ...voluntary, UNACCOUNTED],
    voluntary: new Set(voluntary),
    ledger: new Ledger(data, threads, reasons),
    stacks: new Stacks(data),
    weights: new Weights(data),
    counters: countersOf(data, threads),
    marks: Array.from(markTimes, (at, mark) => ({
      at,
      duration: markDurations[mark],
      text: head.strings[markTexts[mark]],
    })),
    clock: new Clock(head.recording.anchors),
    duration: Math.max(1, head.recording.duration_ns),
    lateStalls: Array.from({ length: stalls.count }, (_, stall) => stall).filter(
      (stall) => !stalls.isVoluntary(stall),
    ),
    busy: Array.from({ length: threads.count }, (_, thread) => thread).filter(
      (thread) => !threads.isIdle(thread),
    ),
    stallText: (stall) =>
      `${stalls.what(stall)}, ${timeText(stalls.duration[stall])}${stalls.isVoluntary(stall) ? ", voluntary" : ""}`,
    selectedText: "",
  };
  model.stacks.setMeant(stalls);
  // Where all threads are idle, folding them would leave nothing.
  if (model.busy.length === 0) model.busy = Array.from({ length: threads.count }, (_, thread) => thread);
  return model;
}

function setColours(model) {
  model.look = themeColours();
  model.colours = palette(model.head.states, model.look.theme, STATES);
  // Canvas pixels are alpha, blue, green, red from the highest byte down.
  const word = (colour) =>
    (0xff000000 |
      (parseInt(colour.slice(5, 7), 16) << 16) |
      (parseInt(colour.slice(3, 5), 16) << 8) |
      parseInt(colour.slice(1, 3), 16)) >>>
    0;
  model.words = Uint32Array.from(model.colours, word);
}

class App {
  constructor(model) {
    this.model = model;
    this.limits = {
      duration: model.duration,
      threads: model.threads.count,
      findings: model.head.findings.length,
    };
    this.view = viewOfFragment(location.hash, this.limits);
    this.tip = new Tip();
    const act = this.#actions();
    this.timeline = new Timeline(model, act, this.tip);
    this.maps = new Maps(model, act, this.tip);
    this.table = new Table(model, act);
    this.flame = new FlameGraph(model, act, this.tip);
    byId("timeline").append(this.timeline.element);
    byId("maps").append(this.maps.element);
    byId("stalls").append(this.table.element);
    byId("flame").append(this.flame.element);
    if (model.counters.length > 0) {
      this.charts = new Charts(model, act);
      byId("counters").append(this.charts.element);
      byId("counters").hidden = false;
    }
    if (model.head.kinds.length > 0) {
      this.#spans();
      byId("spans").hidden = false;
    }
    byId("maps").hidden = model.lateStalls.length === 0;
    this.#head();
    this.#findings(FINDINGS_AT_FIRST);
    this.#quality();
    document.addEventListener("keydown", (event) => this.#key(event));
    window.addEventListener("hashchange", () => this.open());
    new ResizeObserver(() => this.changed()).observe(byId("main"));
  }

  /** Shows what the address asks for. */
  open() {
    this.view = viewOfFragment(location.hash, this.limits);
    const { stall, opens } = this.view;
    const found = opens ? this.model.stalls.find(stall) : -1;
    if (found >= 0) this.#openStall(found);
    this.update();
    if (opens) byId("detail").scrollIntoView({ block: "nearest" });
  }

  #actions() {
    const set = (change) => {
      Object.assign(this.view, change);
      this.changed();
    };
    return {
      select: (range) => set({ range, stall: range ? this.view.stall : null }),
      zoom: (zoom) => set({ zoom }),
      thread: (thread, adds) => {
        const { threads } = this.view;
        if (threads?.size === 1 && threads.has(thread)) return set({ threads: null });
        const picked = new Set(adds && threads ? threads : []);
        if (!picked.delete(thread)) picked.add(thread);
        set({ threads: picked.size > 0 ? picked : null });
      },
      stall: (stall) => this.#showStall(stall),
      sort: (sort) =>
        set({
          sort,
          ascending: sort === this.view.sort ? !this.view.ascending : !["late", "duration"].includes(sort),
        }),
      text: (text) => set({ text }),
      all: () => set({ all: !this.view.all }),
      idle: () => set({ idle: !this.view.idle }),
      reverse: () => set({ reversed: !this.view.reversed }),
      search: (search) => set({ search }),
      counters: (counters) => set({ counters }),
      state: (state) => {
        const { states } = this.view;
        const picked = new Set(states ?? []);
        if (!picked.delete(state)) picked.add(state);
        set({ states: picked.size > 0 ? picked : null });
      },
    };
  }

  /** Draws again at the next frame. */
  changed() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.update();
    });
  }

  /** The selected time. A zoom shows a part of it, and selects nothing: the table stays as it is. */
  get range() {
    return this.view.range ?? [0, this.model.duration];
  }

  update() {
    const started = performance.now();
    const { model, view } = this;
    const [from, to] = this.range;
    const shown = view.idle ? null : new Set(model.busy);
    const hasThread = (thread) => (view.threads ? view.threads.has(thread) : !shown || shown.has(thread));
    const pick = (thread, state) => hasThread(thread) && (!view.states || view.states.has(state));
    const { states, isExact } = model.ledger.states(from, to, model.stalls);
    const rows = this.#pickedStalls(from, to, pick);
    const late = new Float64Array(model.threads.count);
    for (const stall of model.lateStalls) {
      if (model.stalls.start[stall] < to && model.stalls.end(stall) > from)
        late[model.stalls.thread[stall]] += model.stalls.late[stall];
    }
    model.selectedText = this.#selectedThreads(hasThread);
    const { shown: shownStates, meanings } = model.stalls.shownStates(states, from, to);
    this.#selected(states, shownStates, { isExact, hasThread, meanings });
    this.#timeline(shownStates, late);
    this.#detail();
    this.charts?.update(view, Math.max(500, byId("timeline").firstElementChild.clientWidth));
    this.maps.draw(
      this.range,
      rows.filter((stall) => !model.stalls.isVoluntary(stall)),
    );
    this.table.update(view, rows);
    const own = model.weights.ofSelection(from, to, pick, model);
    this.flame.update(view, own);
    document.documentElement.dataset.updateMs = (performance.now() - started).toFixed(1);
    clearTimeout(this.fragmentTimer);
    this.fragmentTimer = setTimeout(() => this.#setFragment(), FRAGMENT_DELAY_MS);
  }

  #setFragment() {
    const fragment = fragmentOf(this.view);
    if (location.hash.replace(/^#/, "") !== fragment) history.replaceState(null, "", `#${fragment}`);
  }

  #pickedStalls(from, to, pick) {
    const { model, view } = this;
    const { stalls } = model;
    const matches = textFilter(model, view.text);
    const evidence = view.finding === null ? null : new Set(model.head.findings[view.finding].stalls);
    return sortedStalls(
      model,
      view,
      this.table.orders,
      (stall) =>
        stalls.start[stall] < to &&
        stalls.end(stall) > from &&
        (view.all || !stalls.isVoluntary(stall)) &&
        pick(stalls.thread[stall], stalls.shown(stall)) &&
        (!evidence || evidence.has(stalls.id[stall])) &&
        (!matches || matches(stall)),
    );
  }

  #selectedThreads(hasThread) {
    const { threads } = this.model;
    const picked = Array.from({ length: threads.count }, (_, thread) => thread).filter(hasThread);
    if (picked.length === 1) return `thread ${threads.name(picked[0])}`;
    return countedText(picked.length, "thread");
  }

  #timeline(states, late) {
    const { model, view, timeline } = this;
    const { stalls } = model;
    let rows = view.idle
      ? Array.from({ length: model.threads.count }, (_, thread) => thread)
      : [...model.busy];
    for (const thread of view.threads ?? []) if (!rows.includes(thread)) rows.push(thread);
    const stall = view.stall === null ? -1 : stalls.find(view.stall);
    if (stall >= 0) rows = withRelated(rows, stalls, stall);
    const folded = view.idle ? 0 : model.threads.count - model.busy.length;
    timeline.update(view, rows, states, late, folded);
    timeline.draw();
    if (stall >= 0 && this.revealed !== view.stall) timeline.reveal(stalls.thread[stall]);
    this.revealed = view.stall;
  }

  /** Selects a stall, and shows its time where it is not seen. */
  #showStall(stall) {
    const { stalls } = this.model;
    const { view, timeline } = this;
    view.stall = stalls.id[stall];
    const [from, to] = view.zoom ?? [0, this.model.duration];
    const pixels = (stalls.duration[stall] / (to - from)) * timeline.plotWidth;
    if (stalls.end(stall) < from || stalls.start[stall] > to || pixels < 6)
      view.zoom = timeline.around(stall);
    if (view.range && (stalls.end(stall) < view.range[0] || stalls.start[stall] > view.range[1]))
      view.range = null;
    if (this.model.threads.isIdle(stalls.thread[stall]) && !view.threads) view.idle = true;
    this.changed();
  }

  #spans() {
    byId("spans").replaceChildren(
      ...spansSection(this.model, { span: (span) => this.#openSpan(span) }),
    );
  }

  #head() {
    const { recording } = this.model.head;
    const { clock, duration, threads } = this.model;
    const parts = [
      `${countedText(threads.count, "thread")}`,
      `${timeText(duration)} from ${clock.text(0, 3)} (${clock.dateText(0)})`,
      recording.hostname && `host ${recording.hostname}`,
      recording.kernel && `kernel ${recording.kernel} ${recording.arch}`,
      recording.cpus > 0 && countedText(recording.cpus, "CPU"),
      recording.source && recording.source !== "live" && `from ${recording.source}`,
      ...Object.entries(recording.labels).map(([key, value]) => `${key}=${value}`),
    ];
    const about = byId("about");
    about.append(el("b", {}, recording.command || "recording"), `  ${parts.filter(Boolean).join(" · ")}`);
    about.title = about.textContent;
    if (!recording.ended_cleanly) {
      byId("main").prepend(
        el(
          "p",
          { class: "warning" },
          "The recording has no end: its recorder was killed, or still records.",
        ),
      );
    }
    document.title = `${recording.command || "recording"} – wallprof`;
    byId("tools").append(
      el("button", { id: "theme", title: "light or dark (t)", onclick: () => this.#turnTheme() }, "◐"),
      el("button", { id: "help", title: "keys (?)", onclick: () => this.#help() }, "?"),
    );
  }

  #findings(most) {
    const { findings } = this.model.head;
    const section = byId("findings");
    const note =
      findings.length === 0
        ? "No rule found a cause of lateness in this recording."
        : "what was late and why, the most costly first";
    section.replaceChildren(
      el("h2", {}, "Findings", el("span", { class: "note" }, note)),
      ...findings.slice(0, most).map((finding, at) => this.#finding(finding, at)),
    );
    if (findings.length > most) {
      section.append(
        el(
          "button",
          { class: "link", id: "more-findings", onclick: () => this.#findings(Infinity) },
          `${findings.length - most} more`,
        ),
      );
    }
  }

  #finding(finding, at) {
    const { stalls } = this.model;
    const known = finding.stalls.map((id) => stalls.find(id)).filter((stall) => stall >= 0);
    known.sort((a, b) => stalls.late[b] - stalls.late[a]);
    // One event that hit many threads is one link.
    const nameOf = (stall) =>
      `${timeText(stalls.late[stall])} at ${this.model.clock.text(stalls.start[stall], 3)}`;
    const byName = new Map(
      known
        .slice(0, 50)
        .reverse()
        .map((stall) => [nameOf(stall), stall]),
    );
    const links = [...byName]
      .reverse()
      .slice(0, 3)
      .map(([name, stall], rank) =>
        el(
          "button",
          { class: "link", "data-stall": stalls.id[stall], onclick: () => this.#openStall(stall) },
          rank === 0 ? `longest: ${name}` : name,
        ),
      );
    const isOpen = this.view.finding === at;
    return el(
      "div",
      { class: "finding" },
      el("span", { class: "rank" }, String(at + 1)),
      el(
        "div",
        { class: "body" },
        el("div", { class: "title" }, finding.title),
        el("div", { class: "more", title: finding.advice }, withCode(finding.advice)),
        el(
          "div",
          { class: "links" },
          known.length > 0 &&
            el(
              "button",
              {
                class: "link",
                "data-finding": at,
                "aria-pressed": String(isOpen),
                onclick: () => this.#openFinding(at),
              },
              `show ${known.length === 1 ? "its stall" : `its ${countText(known.length)} stalls`}`,
            ),
          ...links,
          el(
            "span",
            { class: "rule" },
            `${finding.rule} · ${countText(finding.count)} × · ${timeText(finding.total_ns)} in all`,
          ),
        ),
      ),
    );
  }

  /** The evidence of a finding: its stalls alone, on its threads. */
  #openFinding(at) {
    const { findings } = this.model.head;
    const threads = new Set(findings[at].threads);
    Object.assign(this.view, emptyView(), {
      finding: at,
      threads: threads.size > 0 && threads.size <= 50 ? threads : null,
      all: true,
      counters: this.view.counters,
    });
    this.changed();
  }

  #openStall(stall) {
    Object.assign(this.view, emptyView(), {
      zoom: this.timeline.around(stall),
      counters: this.view.counters,
    });
    this.#showStall(stall);
    byId("timeline").scrollIntoView({ block: "nearest" });
  }

  /** The time of a span on its thread. */
  #openSpan(span) {
    const { duration } = this.model;
    const [from, to] = [span.start_ns, Math.min(duration, span.start_ns + span.duration_ns)];
    const beside = (to - from) / 4;
    Object.assign(this.view, emptyView(), {
      range: [from, to],
      zoom: [Math.max(0, from - beside), Math.min(duration, to + beside)],
      threads: span.thread === null ? null : new Set([span.thread]),
      all: true,
      counters: this.view.counters,
    });
    this.changed();
    byId("timeline").scrollIntoView({ block: "nearest" });
  }

  /** The ledger of the selection, which is the legend of all colours, too. */
  #selected(states, shownStates, { isExact, hasThread, meanings }) {
    const { model, view } = this;
    const [sums, recorded] = [shownStates, states].map((all) => {
      const sum = new Float64Array(STATES);
      for (let thread = 0; thread < model.threads.count; thread += 1) {
        if (!hasThread(thread)) continue;
        for (let state = 0; state < STATES; state += 1) sum[state] += all[thread * STATES + state];
      }
      return sum;
    });
    const more = meanings.length > 2 ? ` and ${meanings.length - 2} more` : "";
    const nameOf = (state) =>
      state === MEANT ? meanings.slice(0, 2).join(", ") + more || "meaning" : model.stateNames[state];
    const whole = sums.reduce((sum, ns) => sum + ns, 0);
    const present = model.order.filter(
      (state) => sums[state] >= 0.5 || recorded[state] >= 0.5 || view.states?.has(state),
    );
    const act = (state) => () => this.timeline.act.state(state);
    const bar = el(
      "div",
      { class: "bar" },
      present
        .filter((state) => sums[state] / whole > 0.0005)
        .map((state) => {
          const part = el("button", {
            tabindex: "-1",
            title: `${nameOf(state)}: ${timeText(sums[state])}, ${percentText(sums[state], whole)}`,
            onclick: act(state),
          });
          part.style.background = model.colours[state];
          part.style.width = `${(100 * sums[state]) / whole}%`;
          return part;
        }),
    );
    const about = isExact ? "" : "≈ ";
    const chips = [...present]
      .sort((a, b) => sums[b] - sums[a])
      .map((state) => {
        const swatch = el("span", { class: "swatch" });
        swatch.style.background = model.colours[state];
        return el(
          "button",
          {
            class: view.states && !view.states.has(state) ? "chip off" : "chip",
            "data-state": model.stateNames[state],
            "data-ledger-ns": Math.round(recorded[state]),
            "aria-pressed": String(Boolean(view.states?.has(state))),
            title:
              Math.abs(sums[state] - recorded[state]) < 1 || state === MEANT
                ? "A click selects this state"
                : `${timeText(recorded[state])} with the waits that are listed by their meaning`,
            onclick: act(state),
          },
          swatch,
          `${nameOf(state)} ${about}${timeText(sums[state])} (${percentText(sums[state], whole)})`,
        );
      });
    const section = byId("selected");
    section.dataset.wallNs = Math.round(whole);
    section.dataset.exact = isExact;
    section.replaceChildren(
      el("h2", {}, "Where the time went", this.#selectionText(isExact)),
      bar,
      el("div", { class: "chips" }, chips),
    );
  }

  #selectionText(isExact) {
    const { model, view } = this;
    const [from, to] = this.range;
    const set = (change) => () => {
      Object.assign(view, change);
      this.changed();
    };
    const folded = view.threads || view.idle ? 0 : model.threads.count - model.busy.length;
    const time = view.range
      ? `${model.clock.text(from)} to ${model.clock.text(to)}, ${timeText(to - from)}`
      : `the whole recording, ${timeText(model.duration)}`;
    const threads = model.selectedText + (folded > 0 ? ` (without ${countText(folded)} idle)` : "");
    const isLimited =
      view.range || view.zoom || view.threads || view.states || view.finding !== null || view.text;
    return el(
      "span",
      { class: "note selection" },
      `${threads}, ${time}${isExact ? "" : "; shares of a bin are in proportion, single stalls exact"}`,
      view.finding !== null &&
        el("button", { class: "link", onclick: set({ finding: null }) }, `finding ${view.finding + 1} ×`),
      view.range && el("button", { id: "zoom-in", onclick: set({ zoom: view.range }) }, "Zoom to it (z)"),
      isLimited && el("button", { id: "clear", onclick: () => this.#clear() }, "Show everything (Esc)"),
    );
  }

  #clear() {
    const { counters, sort, ascending, idle, reversed, search } = this.view;
    Object.assign(this.view, emptyView(), { counters, sort, ascending, idle, reversed, search });
    this.changed();
  }

  #detail() {
    const { model, view } = this;
    const section = byId("detail");
    section.hidden = view.stall === null;
    if (view.stall === null) return;
    const close = el(
      "button",
      {
        onclick: () => {
          view.stall = null;
          this.changed();
        },
      },
      "Close",
    );
    const stall = model.stalls.find(view.stall);
    if (stall < 0) {
      const why =
        "it is of another time, or one of the short ones that a large page leaves out; " +
        `wallprof stalls --id ${view.stall} looks for it in the recording`;
      return section.replaceChildren(
        el("h2", {}, `stall ${view.stall} is not on this page`, el("span", { class: "note" }, why), close),
      );
    }
    const { stalls, threads, clock } = model;
    const facts = this.#facts(stall)
      .filter(([, value]) => value)
      .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
    const thread = stalls.thread[stall];
    section.replaceChildren(
      el(
        "h2",
        {},
        `${threads.name(thread)}: ${model.stallText(stall)}`,
        el(
          "span",
          { class: "note" },
          `stall ${stalls.id[stall]} at ${clock.text(stalls.start[stall])}; n and p show the next and the previous one of the table`,
        ),
        el("button", { onclick: () => this.timeline.act.zoom(this.timeline.around(stall)) }, "Zoom"),
        close,
      ),
      el(
        "div",
        { class: "detail" },
        el("dl", { class: "facts" }, facts),
        this.#stack("waited in, innermost first", stalls.stack[stall]),
        this.#stack(
          stalls.wakerText(stall) ? `woken by ${stalls.wakerText(stall)}, in` : "woken in",
          stalls.wakerStack[stall],
        ),
      ),
    );
  }

  #facts(stall) {
    const { stalls, threads, clock } = this.model;
    const thread = stalls.thread[stall];
    const link = (mention) =>
      mention?.index >= 0
        ? el(
            "button",
            { class: "link", onclick: () => this.timeline.act.thread(mention.index, true) },
            `${mention.name} ${mention.tid}`,
          )
        : mention && `${mention.name} ${mention.tid}`;
    const ran = stalls
      .ranInstead(stall)
      .map(([other, ns]) => el("div", {}, link(other), " ", el("span", { class: "value" }, timeText(ns))));
    const cpu = stalls.cpu[stall];
    return [
      [
        "thread",
        `${threads.name(thread)} ${threads.tid[thread]} of ${threads.process(thread)} ${threads.pid[thread]}`,
      ],
      [
        "late",
        stalls.isVoluntary(stall) ? "voluntary: the thread asked for it" : timeText(stalls.late[stall]),
      ],
      [
        "from",
        `${clock.text(stalls.start[stall])} for ${timeText(stalls.duration[stall])}${stalls.isOpen(stall) ? ", still open" : ""}`,
      ],
      ["blocked", stalls.blocked[stall] > 0 && timeText(stalls.blocked[stall])],
      ["waited for a CPU", stalls.runnable[stall] > 0 && timeText(stalls.runnable[stall])],
      ["asked for", stalls.asked[stall] > 0 && timeText(stalls.asked[stall] - 1)],
      ["system call", stalls.text("syscall", stall)],
      ["file", stalls.text("file", stall)],
      ["trace", stalls.text("trace", stall)],
      ["CPU", cpu > 0 && String(cpu - 1)],
      ["woken by", link(stalls.mention(stalls.waker[stall])) ?? stalls.wakerText(stall)],
      ["lock", stalls.text("lock", stall)],
      ["lock held by", link(stalls.mention(stalls.owner[stall]))],
      ["the holder was", this.#holderText(stall)],
      ["ran instead", ran.length > 0 && el("div", {}, ran)],
    ];
  }

  /** What the holder of the lock did until it woke the thread, as far as its own stalls say. */
  #holderText(stall) {
    const { stalls, stateNames } = this.model;
    const owner = stalls.mention(stalls.owner[stall]);
    const [from, to] = [stalls.start[stall], stalls.wokenAt(stall)];
    if (!owner || owner.index < 0 || to <= from) return "";
    const sums = new Float64Array(STATES);
    stalls.addParts(owner.index, from, to, sums, 0);
    const away = sums.reduce((sum, ns) => sum + ns, 0);
    const parts = [...sums.entries()]
      .filter(([, ns]) => ns > 0)
      .sort((a, b) => b[1] - a[1])
      .map(([state, ns]) => `${stateNames[state]} ${timeText(ns)}`);
    if (to - from > away)
      parts.push(`running, or in waits too short to be recorded ${timeText(to - from - away)}`);
    return parts.join(", ");
  }

  #stack(title, node) {
    const { stacks } = this.model;
    const lines = [...stacks.path(node)].map((one) => {
      const module = stacks.module(one).split("/").pop();
      return el(
        "li",
        {
          class: stacks.isKernel(one) ? "kernel" : null,
          title: `${stacks.name(one)}  ${stacks.module(one)}`,
        },
        stacks.name(one),
        module && el("span", { class: "module" }, `  ${module}`),
      );
    });
    return el(
      "div",
      {},
      el("div", { class: "note" }, title),
      lines.length > 0
        ? el("ol", { class: "stack" }, lines)
        : el("div", { class: "note" }, "no stack is known"),
    );
  }

  #quality() {
    const { losses, unwinding, overhead, left_out: leftOut, version } = this.model.head;
    const { duration } = this.model;
    const lost = losses.filter(([, count]) => count > 0);
    const incomplete = Object.entries(unwinding.incomplete).filter(([, count]) => count > 0);
    const list = (items) =>
      el(
        "ul",
        {},
        items.map((item) => el("li", {}, ...[item].flat())),
      );
    const facts = [
      lost.length === 0 ? "Nothing was lost." : ["Lost: ", lostList(lost)],
      unwinding.stacks > 0 &&
        `User stacks: ${countText(unwinding.complete)} of ${countText(unwinding.stacks)} complete (${percentText(unwinding.complete, unwinding.stacks)})` +
          (incomplete.length > 0
            ? `; others ended by ${incomplete.map(([reason, count]) => `${reason} ${countText(count)}`).join(", ")}.`
            : "."),
      (overhead.process_cpu_ns > 0 || overhead.probe_ns > 0) &&
        `wallprof itself: ${timeText(overhead.process_cpu_ns)} of CPU time (${percentText(overhead.process_cpu_ns, duration)} of a CPU)` +
          ` and ${timeText(overhead.probe_ns)} in ${countText(overhead.probe_runs)} runs of its probes (${percentText(overhead.probe_ns, duration)}).`,
      `Stalls are waits of ${timeText(this.model.head.recording.min_stall_ns)} or more. Shorter ones are in the sums.`,
    ];
    byId("quality").append(el("h2", {}, "Losses and cost"), list(facts.filter(Boolean)));
    if (leftOut.length > 0)
      byId("quality").append(el("h2", {}, "Not on this page"), list(leftOut.map(withCode)));
    byId("quality").append(
      el(
        "div",
        { class: "note" },
        `Written by wallprof ${version}. Charts: uPlot (MIT licence, in the page's source).`,
      ),
    );
  }

  #turnTheme() {
    const dark = this.model.look.theme !== "dark";
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    setColours(this.model);
    if (this.model.head.kinds.length > 0) this.#spans();
    this.changed();
  }

  #help() {
    const rows = KEYS.map(([key, text]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)]).flat();
    const dialog = el(
      "dialog",
      { id: "keys" },
      el("h2", {}, "Keys and mouse"),
      el("dl", { class: "facts" }, rows),
      el("button", { onclick: () => dialog.close() }, "Close"),
    );
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  #key(event) {
    const typing = event.target instanceof HTMLInputElement && event.target.type !== "checkbox";
    if (typing && event.key === "Escape") event.target.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
      return;
    const { view, timeline } = this;
    const handled = {
      "+": () => timeline.zoomBy(0.5),
      "=": () => timeline.zoomBy(0.5),
      "-": () => timeline.zoomBy(2),
      ArrowLeft: () => timeline.pan(-0.2),
      ArrowRight: () => timeline.pan(0.2),
      a: () => timeline.pan(-0.2),
      d: () => timeline.pan(0.2),
      0: () => timeline.act.zoom(null),
      z: () => view.range && timeline.act.zoom(view.range),
      Escape: () => this.#clear(),
      "/": () => this.table.filter.focus(),
      f: () => this.flame.find.focus(),
      n: () => this.#step(1),
      p: () => this.#step(-1),
      r: () => timeline.act.reverse?.(),
      i: () => timeline.act.idle(),
      t: () => this.#turnTheme(),
      "?": () => this.#help(),
    }[event.key];
    if (!handled) return;
    event.preventDefault();
    handled();
  }

  /** The next stall of the table. */
  #step(by) {
    const { rows } = this.table;
    if (rows.length === 0) return;
    const at = this.view.stall === null ? -1 : rows.indexOf(this.model.stalls.find(this.view.stall));
    const next = rows[Math.min(rows.length - 1, Math.max(0, at + (at < 0 ? 1 : by)))];
    this.#showStall(next);
    this.table.reveal(next);
  }
}

/** The threads of a stall's story, below its thread: who woke it, who held the lock, who ran instead. */
function withRelated(rows, stalls, stall) {
  const thread = stalls.thread[stall];
  const mentions = [stalls.waker[stall], stalls.owner[stall]].map((mention) => stalls.mention(mention));
  mentions.push(
    ...stalls
      .ranInstead(stall)
      .slice(0, 3)
      .map(([mention]) => mention),
  );
  const related = [
    ...new Set(mentions.filter((mention) => mention?.index >= 0).map((mention) => mention.index)),
  ].filter((other) => other !== thread);
  const others = rows.filter((other) => !related.includes(other));
  if (!others.includes(thread)) others.unshift(thread);
  const at = others.indexOf(thread);
  return [...others.slice(0, at + 1), ...related, ...others.slice(at + 1)];
}

/** A list of losses: how many, and what that means. */
function lostList(losses) {
  const line = ([name, count, meaning]) => [el("dt", {}, countText(count)), el("dd", { title: name }, meaning)];
  return el("dl", { class: "facts" }, losses.flatMap(line));
}

/** A text in which words between backticks are code. */
function withCode(text) {
  return text.split("`").map((part, at) => (at % 2 === 1 ? el("code", {}, part) : part));
}

const KEYS = [
  ["drag", "select a time: everything follows"],
  ["click", "a stall: its stacks, who woke the thread, who held the lock, who ran instead"],
  ["click a name", "select the thread; with Shift several"],
  ["double click", "zoom to the selection or the stall"],
  ["Ctrl wheel", "zoom; with Shift pan"],
  ["+  -", "zoom"],
  ["←  →", "pan"],
  ["z", "zoom to the selection"],
  ["0", "the whole recording"],
  ["n  p", "next and previous stall of the table"],
  ["/", "filter stalls"],
  ["f", "search the flame graph"],
  ["r", "flame graph from the leaf"],
  ["i", "show or fold idle threads"],
  ["t", "light or dark"],
  ["Esc", "show everything"],
];

async function main() {
  const root = document.documentElement;
  root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const element = byId("data");
  const data = await loadData(element.textContent);
  element.textContent = "";
  const model = modelOf(data);
  setColours(model);
  byId("loading").remove();
  const app = new App(model);
  app.open();
  // Since the start of the navigation, by the page's own clock.
  root.dataset.readyMs = performance.now().toFixed(0);
}

main().catch((error) => {
  byId("loading")?.remove();
  byId("main").prepend(
    el(
      "p",
      { class: "warning" },
      `The recording in this page cannot be read: ${error.message}. Write the page again.`,
    ),
  );
  throw error;
});
