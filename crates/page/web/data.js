// SPDX-License-Identifier: Apache-2.0
// The data of the page: a head in JSON, and columns of numbers as `src/columns.rs` writes them.

/** The compressed text in the page as columns. */
export async function loadData(base64) {
  const packed = bytesOfBase64(base64);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return decodeData(new Uint8Array(await new Response(stream).arrayBuffer()));
}

function bytesOfBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** `{ head, column(name) }`: a column that is not there is empty, or zeros if a length is given. */
export function decodeData(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = view.getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const start = 4 + length;
  const column = (name, zeros = 0) => {
    const place = head.columns[name];
    if (!place) return new Float64Array(zeros);
    const [coding, count, from] = place;
    return CODINGS[coding](bytes, start + from, count);
  };
  return { head, column };
}

const CODINGS = {
  unsigned(bytes, at, count) {
    const values = new Float64Array(count);
    for (let row = 0; row < count; row += 1) {
      let byte = bytes[at++];
      let value = byte & 0x7f;
      for (let factor = 128; byte & 0x80; factor *= 128) {
        byte = bytes[at++];
        value += (byte & 0x7f) * factor;
      }
      values[row] = value;
    }
    return values;
  },
  delta(bytes, at, count) {
    const values = CODINGS.unsigned(bytes, at, count);
    let last = 0;
    for (let row = 0; row < count; row += 1) {
      const coded = values[row];
      // The sign is the lowest bit. Shifts would cut the number to 32 bits.
      last += coded % 2 === 0 ? coded / 2 : -(coded + 1) / 2;
      values[row] = last;
    }
    return values;
  },
  float(bytes, at, count) {
    return new Float64Array(bytes.slice(at, at + 8 * count).buffer);
  },
};

/** Where the rows of each group start, of rows that are sorted by group. One entry more than groups. */
export function startsOf(groups, count) {
  const starts = new Uint32Array(count + 1);
  for (const group of groups) starts[group + 1] += 1;
  for (let group = 0; group < count; group += 1) starts[group + 1] += starts[group];
  return starts;
}

/** The rows of each group in their order: `rows[starts[g]..starts[g + 1]]`. */
export function grouped(groups, count) {
  const starts = startsOf(groups, count);
  const next = starts.slice();
  const rows = new Uint32Array(groups.length);
  for (let row = 0; row < groups.length; row += 1) rows[next[groups[row]]++] = row;
  return { starts, rows };
}

/** The first index whose value is more than `limit`, of an ascending array between `from` and `to`. */
export function firstAbove(values, limit, from = 0, to = values.length) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] > limit) to = middle;
    else from = middle + 1;
  }
  return from;
}
