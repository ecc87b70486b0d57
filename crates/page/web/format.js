// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them.

/** `412 ns`, `5.27 ms`, `12.3 s`, `1 h 2 min`: three digits. */
export function timeText(ns) {
  const size = Math.abs(ns);
  if (size < 1e3) return `${Math.round(ns)} ns`;
  if (size < 999.5e3) return `${threeDigits(ns / 1e3)} µs`;
  if (size < 999.5e6) return `${threeDigits(ns / 1e6)} ms`;
  if (size < 600e9) return `${threeDigits(ns / 1e9)} s`;
  const minutes = Math.round(ns / 60e9);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function threeDigits(value) {
  const size = Math.abs(value);
  return value.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

/** `12,345`. */
export function countText(count) {
  return Math.round(count).toLocaleString("en-US");
}

/** `1 stall`, `2 stalls`. */
export function countedText(count, noun, plural = `${noun}s`) {
  return `${countText(count)} ${count === 1 ? noun : plural}`;
}

export function percentText(part, whole) {
  if (whole <= 0) return "0 %";
  const share = (100 * part) / whole;
  if (share > 0 && share < 0.1) return "<0.1 %";
  return `${share.toFixed(share < 10 ? 1 : 0)} %`;
}

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** The value of a counter with its unit: `12.0 MiB`, `350 ms/s`. */
export function valueText(value, unit, isRate) {
  const rate = isRate ? "/s" : "";
  if (unit === "ns") return timeText(value) + rate;
  if (unit === "bytes") {
    let at = 0;
    while (Math.abs(value) >= 1024 && at < BYTE_UNITS.length - 1) {
      value /= 1024;
      at += 1;
    }
    return `${at === 0 ? Math.round(value) : threeDigits(value)} ${BYTE_UNITS[at]}${rate}`;
  }
  return (Math.abs(value) < 1000 ? String(Number(value.toFixed(2))) : countText(value)) + rate;
}

/**
 * Times of day of a recording. `anchors` are [ns since the start, ms since the epoch, ns beyond them]. A
 * recording that does not know the time of day has none: times are then since its start.
 */
export class Clock {
  constructor(anchors) {
    this.anchors = anchors;
  }

  get isKnown() {
    return this.anchors.length > 0;
  }

  /** Milliseconds since the epoch, and the nanoseconds beyond them. */
  at(ns) {
    let anchor = this.anchors[0];
    for (const one of this.anchors) if (one[0] <= ns) anchor = one;
    const beyond = anchor[2] + (ns - anchor[0]);
    const ms = Math.floor(beyond / 1e6);
    return [anchor[1] + ms, Math.floor(beyond - ms * 1e6)];
  }

  /** `08:00:12.331042`, or `+3.000042 s`. */
  text(ns, digits = 6) {
    if (!this.isKnown) return `${ns < 0 ? "-" : "+"}${(Math.abs(ns) / 1e9).toFixed(digits)} s`;
    const [ms, beyond] = this.at(ns);
    const date = new Date(ms);
    const two = (part) => String(part).padStart(2, "0");
    const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
    const part = String(((ms % 1000) + 1000) % 1000).padStart(3, "0") + String(beyond).padStart(6, "0");
    return digits > 0 ? `${clock}.${part.slice(0, digits)}` : clock;
  }

  /** `2026-11-21, UTC+1`. */
  dateText(ns) {
    if (!this.isKnown) return "the time of day is not known";
    const date = new Date(this.at(ns)[0]);
    const offset = -date.getTimezoneOffset();
    const hours = Math.trunc(offset / 60);
    const minutes = Math.abs(offset % 60);
    const zone =
      offset === 0 ? "UTC" : `UTC${hours < 0 ? "-" : "+"}${Math.abs(hours)}${minutes ? `:${minutes}` : ""}`;
    const two = (part) => String(part).padStart(2, "0");
    return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}, ${zone}`;
  }

  /** The second and the offset within it, ns: of the wall clock, else since the start. */
  second(ns) {
    if (!this.isKnown) return [Math.floor(ns / 1e9), ((ns % 1e9) + 1e9) % 1e9];
    const [ms, beyond] = this.at(ns);
    const second = Math.floor(ms / 1000);
    return [second, (ms - second * 1000) * 1e6 + beyond];
  }
}

/** Ticks of a time axis: a round step, and the times that are its multiples. */
export function timeTicks(from, to, most) {
  const raw = (to - from) / Math.max(1, most);
  const steps = [1, 2, 5];
  let step = 1;
  for (let power = 1; step < raw; power *= 10) {
    for (const one of steps) {
      step = one * power;
      if (step >= raw) break;
    }
  }
  // Above a minute people count in sixties.
  for (const seconds of [15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400]) {
    if (raw > 5e9 && raw <= 86400e9 && seconds * 1e9 >= raw) {
      step = seconds * 1e9;
      break;
    }
  }
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push(at);
  return { step, ticks };
}

/** The label of a tick, with as many digits as the step needs: `+1.25 s`. */
export function tickText(at, step) {
  const [unit, name] =
    step >= 1e9 || at >= 1e9 ? [1e9, "s"] : step >= 1e6 || at >= 1e6 ? [1e6, "ms"] : [1e3, "µs"];
  if (unit === 1e9 && step >= 1e9 && at >= 120e9) {
    const seconds = Math.round(at / 1e9);
    const two = (part) => String(part).padStart(2, "0");
    const hours = Math.floor(seconds / 3600);
    const rest = `${hours ? two(Math.floor((seconds % 3600) / 60)) : Math.floor(seconds / 60)}:${two(seconds % 60)}`;
    return hours ? `${hours}:${rest}` : rest;
  }
  const digits = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  return `${(at / unit).toFixed(digits)} ${name}`;
}
