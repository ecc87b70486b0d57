// SPDX-License-Identifier: Apache-2.0
// The kinds of spans: their percentiles, why the slow ones are slow, and the slowest, each a link to its time.

import { countText, countedText, percentText, timeText } from "./format.js";
import { el } from "./dom.js";

const SPAN_TITLES = ["P50", "P90", "P99", "P99.9", "longest"];
/** Kinds of which the words are shown at first. */
const SPAN_KINDS_OPEN = 1;

/** `act.span(span)` is called with the span whose link was followed. */
export function spansSection(model, act) {
  const { kinds, kinds_left_out: more } = model.head;
  const rest = more > 0 ? `; ${countText(more)} more have fewer spans` : "";
  return [
    el(
      "h2",
      {},
      "Spans",
      el("span", { class: "note" }, `${countedText(kinds.length, "kind")} in the whole recording${rest}`),
    ),
    el(
      "div",
      { class: "kinds", role: "table", "aria-label": "Kinds of spans" },
      kindTitles(),
      kinds.map((kind, at) => kindRow(model, act, kind, at < SPAN_KINDS_OPEN)),
    ),
  ];
}

function kindTitles() {
  return el(
    "div",
    { class: "kind titles", role: "row" },
    el("span", {}, "kind"),
    ["spans", ...SPAN_TITLES].map((title) => el("span", { class: "number" }, title)),
  );
}

function kindRow(model, act, kind, isOpen) {
  const numbers = [countText(kind.count), ...kind.percentiles.map(timeText)];
  const about = el(
    "div",
    { class: "about-kind", hidden: !isOpen },
    el("p", {}, kind.words),
    kind.compared && comparison(model, kind.compared),
    kind.slowest.length > 0 &&
      el("ol", {}, kind.slowest.map((span) => el("li", {}, spanLink(model, act, span), ` ${span.words}`))),
  );
  const button = el(
    "button",
    {
      class: "link",
      "aria-expanded": String(isOpen),
      title: kind.name,
      onclick: () => {
        about.hidden = !about.hidden;
        button.setAttribute("aria-expanded", String(!about.hidden));
      },
    },
    kind.name,
  );
  return el(
    "div",
    { role: "rowgroup", "data-kind": kind.name },
    el(
      "div",
      { class: "kind", role: "row" },
      el("span", { role: "cell" }, button),
      numbers.map((text) => el("span", { class: "number", role: "cell" }, text)),
    ),
    about,
  );
}

/** A bar of states for a span of the middle, and one for a slow span, both as long as the span. */
function comparison(model, { middle, slowest, states }) {
  const wholes = [2, 3].map((at) => states.reduce((sum, state) => sum + state[at], 0));
  const longest = Math.max(...wholes);
  const names = [
    `middle, P${trimmed(middle[0])} to P${trimmed(middle[1])}`,
    `slowest ${trimmed(1 - slowest[0])} %`,
  ];
  return el(
    "div",
    { class: "compared" },
    names.flatMap((name, row) => {
      const bar = el("div", { class: "bar" });
      bar.style.width = `${(100 * wholes[row]) / longest}%`;
      const parts = [...states].filter((state) => state[row + 2] > 0).sort((a, b) => b[row + 2] - a[row + 2]);
      const texts = parts.map(
        (state) => `${state[0]} ${timeText(state[row + 2])} (${percentText(state[row + 2], wholes[row])})`,
      );
      parts.forEach((state, at) => {
        const part = el("span", { title: texts[at] });
        part.style.background = model.colours[state[1]];
        part.style.width = `${(100 * state[row + 2]) / wholes[row]}%`;
        bar.append(part);
      });
      return [
        el("span", {}, name),
        el("span", { class: "number" }, timeText(wholes[row])),
        el("div", {}, bar, el("div", { class: "note" }, texts.slice(0, 4).join(", "))),
      ];
    }),
  );
}

function trimmed(share) {
  return String(Number((share * 100).toFixed(4)));
}

function spanLink(model, act, span) {
  const text = `${timeText(span.duration_ns)} at ${model.clock.text(span.start_ns, 3)}`;
  return el("button", { class: "link", "data-span": span.start_ns, onclick: () => act.span(span) }, text);
}
