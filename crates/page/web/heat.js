// SPDX-License-Identifier: Apache-2.0
// Grids of heat maps.

/** A column a step of time, a row a power of 2^(1/2) of how late a stall made its thread. */
export const LATENCY_ROWS = 44;
const LOWEST_NS = 1_000;

/** The row of a lateness: 0 up to a microsecond, two rows for each doubling. */
export function latencyRow(ns) {
  const row = ns <= LOWEST_NS ? 0 : Math.floor(2 * Math.log2(ns / LOWEST_NS));
  return Math.min(LATENCY_ROWS - 1, row);
}

/** The least lateness of a row, ns. */
export function latencyOfRow(row) {
  return LOWEST_NS * 2 ** (row / 2);
}

/** How many of `picked` stalls ended at which time, with which lateness. */
export function latencyGrid(stalls, picked, from, to, columns) {
  const cells = new Uint32Array(columns * LATENCY_ROWS);
  const scale = columns / (to - from);
  for (const stall of picked) {
    const column = Math.floor((stalls.end(stall) - from) * scale);
    if (column < 0 || column > columns) continue;
    cells[Math.min(column, columns - 1) * LATENCY_ROWS + latencyRow(stalls.late[stall])] += 1;
  }
  return cells;
}

/**
 * The lateness of `picked` stalls by second (columns) and by offset within the second (rows). What happens
 * every second at the same offset is a line. Returns the ns of each cell.
 */
export function offsetGrid(stalls, picked, from, to, clock, columns, rows) {
  const first = clock.second(from)[0];
  const seconds = Math.max(1, clock.second(Math.max(from, to - 1))[0] - first + 1);
  const wide = Math.min(columns, seconds);
  const cells = new Float64Array(wide * rows);
  for (const stall of picked) {
    const [second, offset] = clock.second(stalls.start[stall]);
    const column = Math.floor(((second - first) * wide) / seconds);
    if (column < 0 || column >= wide) continue;
    cells[column * rows + Math.min(rows - 1, Math.floor((offset * rows) / 1e9))] += stalls.late[stall];
  }
  return { cells, columns: wide, first, seconds };
}
