// SPDX-License-Identifier: Apache-2.0
// What the reader looks at, and its form in the fragment of the URL: a link opens the same view.

export const SORTS = ["time", "thread", "what", "late", "duration", "place", "waker", "owner"];

/** Everything of the recording. `null` means no limit. */
export function emptyView() {
  return {
    range: null,
    zoom: null,
    threads: null,
    states: null,
    text: "",
    stall: null,
    opens: false,
    sort: "late",
    ascending: false,
    all: false,
    idle: false,
    reversed: false,
    search: "",
    counters: null,
    finding: null,
  };
}

/** `t=FROM-TO&z=FROM-TO&th=1,4&s=17,5&q=TEXT&id=218&f=0&sort=-late&all&idle&rev&find=TEXT&c=NAME,NAME`; times in ns. */
export function fragmentOf(view) {
  const parts = [];
  const list = (key, values) =>
    values && parts.push(`${key}=${[...values].map(encodeURIComponent).join(",")}`);
  const range = (key, pair) => pair && parts.push(`${key}=${Math.round(pair[0])}-${Math.round(pair[1])}`);
  const text = (key, value) => value && parts.push(`${key}=${encodeURIComponent(value)}`);
  range("t", view.range);
  range("z", view.zoom);
  list("th", view.threads);
  list("s", view.states);
  text("q", view.text);
  if (view.stall !== null) parts.push(`id=${view.stall}`);
  if (view.finding !== null) parts.push(`f=${view.finding}`);
  if (view.sort !== "late" || view.ascending) parts.push(`sort=${view.ascending ? "" : "-"}${view.sort}`);
  for (const [flag, key] of [
    ["all", "all"],
    ["idle", "idle"],
    ["reversed", "rev"],
  ])
    if (view[flag]) parts.push(key);
  text("find", view.search);
  list("c", view.counters);
  return parts.join("&");
}

/**
 * The view of a fragment. What cannot be read, or lies outside the recording, is left out. `stall=N` is the link of an
 * exemplar: the page opens that stall.
 */
export function viewOfFragment(fragment, limits) {
  const view = emptyView();
  for (const part of fragment.replace(/^#/, "").split("&")) {
    const cut = part.indexOf("=");
    const [key, value] = cut < 0 ? [part, ""] : [part.slice(0, cut), part.slice(cut + 1)];
    if (Object.hasOwn(FRAGMENT_READERS, key)) FRAGMENT_READERS[key](view, value, limits);
  }
  return view;
}

const FRAGMENT_READERS = {
  t: (view, value, limits) => (view.range = rangeOf(value, limits)),
  z: (view, value, limits) => (view.zoom = rangeOf(value, limits)),
  th: (view, value, limits) => (view.threads = setOf(value, limits.threads)),
  s: (view, value) => (view.states = setOf(value, 32)),
  q: (view, value) => (view.text = plain(value)),
  id: (view, value) => (view.stall = numberOf(value)),
  stall: (view, value) => {
    view.stall = numberOf(value);
    view.opens = view.stall !== null;
  },
  f: (view, value, limits) => {
    const finding = numberOf(value);
    view.finding = finding !== null && finding < limits.findings ? finding : null;
  },
  sort: (view, value) => {
    const name = value.replace(/^-/, "");
    if (!SORTS.includes(name)) return;
    [view.sort, view.ascending] = [name, !value.startsWith("-")];
  },
  all: (view) => (view.all = true),
  idle: (view) => (view.idle = true),
  rev: (view) => (view.reversed = true),
  find: (view, value) => (view.search = plain(value)),
  c: (view, value) => (view.counters = new Set(value.split(",").filter(Boolean).map(plain))),
};

function numberOf(value) {
  return /^\d+$/.test(value) ? Number(value) : null;
}

function rangeOf(value, { duration }) {
  const found = /^(\d+)-(\d+)$/.exec(value);
  if (!found) return null;
  const [from, to] = [Number(found[1]), Math.min(Number(found[2]), duration)];
  return from < to ? [from, to] : null;
}

function setOf(value, count) {
  const numbers = value
    .split(",")
    .filter((one) => /^\d+$/.test(one))
    .map(Number)
    .filter((one) => one < count);
  return numbers.length > 0 ? new Set(numbers) : null;
}

function plain(value) {
  try {
    return decodeURIComponent(value);
  } catch {
    return "";
  }
}
