// SPDX-License-Identifier: Apache-2.0
// Colours of states. Running is orange, waiting for a CPU yellow, blocked blue to purple, voluntary waits pale. The
// hues are those of Okabe and Ito, which people with any colour vision distinguish; neighbours differ in
// lightness, too, and blocks have labels.

import { MEANT } from "./ledger.js";

const COLOURS = {
  user: "#e69f00",
  kernel: "#a86a00",
  cpu: "#cc8400",
  irq: "#8c1d04",
  "fault:minor": "#f2a48a",
  "fault:major": "#d55e00",
  runnable: "#f7ee7f",
  preempted: "#e3d000",
  "blocked:lock": "#b3478a",
  "blocked:memory": "#6d1b54",
  "blocked:disk": "#0072b2",
  "blocked:stopped": "#444444",
  "blocked:network": "#56b4e9",
  "blocked:pipe": "#2fc4b2",
  "blocked:ipc": "#009e73",
  "blocked:other": "#7f8fa6",
};

/** Waits with a meaning: between locks and peers, which they are. */
const MEANT_COLOUR = "#7d4bc3";

const PALE = {
  light: ["#c9d2dc", "#d6dde5", "#e1e6ec", "#bcc7d3"],
  dark: ["#46505b", "#3d4650", "#343c45", "#505b67"],
};
const VOLUNTARY_ORDER = ["blocked:wait", "blocked:poll", "blocked:sleep", "blocked:child"];
const UNKNOWN = { light: "#c8c8c8", dark: "#555555" };

/** The colour of each state, by its code. */
export function palette(states, theme, count) {
  const colours = new Array(count).fill(UNKNOWN[theme]);
  for (const { code, name } of states) {
    const pale = VOLUNTARY_ORDER.indexOf(name);
    colours[code] = COLOURS[name] ?? (pale >= 0 ? PALE[theme][pale] : UNKNOWN[theme]);
  }
  colours[MEANT] = MEANT_COLOUR;
  return colours;
}

/** Black or white, whichever is easier to read on a colour. */
export function inkOn(colour) {
  return luminance(colour) > 0.36 ? "#16181b" : "#ffffff";
}

/** Relative luminance of WCAG 2, 0 to 1. */
export function luminance(colour) {
  const part = (at) => {
    const value = parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
}

/** From nothing to most, for heat maps: `part` between 0 and 1. Lightness alone says the amount. */
export function heat(part, theme) {
  const stops =
    theme === "dark"
      ? [
          [32, 38, 46],
          [58, 76, 120],
          [160, 80, 130],
          [240, 140, 70],
          [255, 236, 150],
        ]
      : [
          [236, 240, 244],
          [150, 190, 225],
          [120, 90, 180],
          [170, 40, 90],
          [60, 8, 30],
        ];
  const at = Math.min(0.9999, Math.max(0, part)) * (stops.length - 1);
  const [low, high] = [stops[Math.floor(at)], stops[Math.floor(at) + 1]];
  const mix = low.map((value, channel) => Math.round(value + (high[channel] - value) * (at % 1)));
  return `rgb(${mix.join(",")})`;
}
