// SPDX-License-Identifier: Apache-2.0
// Stacks as a tree of functions, and the flame graph of a selection.

import { firstAbove, grouped, startsOf } from "./data.js";
import { KERNEL, MEANT, STATES, UNACCOUNTED, USER } from "./ledger.js";

const KIND_KERNEL = 1;
const KIND_MARK = 2;
const FIRST_STATE = 32;

/** The functions of the recording, and the tree of its stacks. Node 0 is the root. */
export class Stacks {
  constructor(data) {
    this.strings = data.head.strings;
    this.names = [...data.column("function_name")];
    this.modules = [...data.column("function_module")];
    this.kinds = [...data.column("function_kind")];
    const up = data.column("node_up");
    this.parents = Array.from(up, (distance, node) => node - distance);
    this.functions = [...data.column("node_function")];
    this.leaves = new Map();
    this.stateFunctions = new Map();
    this.kinds.forEach(
      (kind, number) => kind >= FIRST_STATE && this.stateFunctions.set(kind - FIRST_STATE, number),
    );
    // The marks at the root, by their names: `[unsampled]`, `[unaccounted]`.
    this.marks = new Map();
    for (let node = 1; node < this.parents.length; node += 1) {
      const parent = this.parents[node];
      if (parent === 0 && this.kind(node) === KIND_MARK) this.marks.set(this.name(node), node);
      if (!this.isState(node)) continue;
      const state = this.stateOf(node);
      this.leaves.set(parent * STATES + state, node);
      // What a wait means stands between its stack and its state.
      if (this.kind(parent) === KIND_MARK && this.parents[parent] > 0) {
        this.leaves.set(this.parents[parent] * STATES + state, node);
      }
    }
  }

  get count() {
    return this.parents.length;
  }

  kind(node) {
    return this.kinds[this.functions[node]];
  }

  isKernel(node) {
    return this.kind(node) === KIND_KERNEL;
  }

  isState(node) {
    return this.kind(node) >= FIRST_STATE;
  }

  /** The state that a leaf stands for. Only `[unaccounted]` has none. */
  stateOf(node) {
    const kind = this.kind(node);
    return kind >= FIRST_STATE ? kind - FIRST_STATE : UNACCOUNTED;
  }

  /** Marks the leaves of waits that have a meaning. */
  setMeant(stalls) {
    this.meant = new Set();
    for (let stall = 0; stall < stalls.count; stall += 1) {
      const leaf = stalls.isMeant[stall]
        ? this.leaves.get(stalls.stack[stall] * STATES + stalls.state(stall))
        : undefined;
      if (leaf !== undefined) this.meant.add(leaf);
    }
  }

  /** The state that a leaf's colour stands for. */
  shownOf(node) {
    return this.meant.has(node) ? MEANT : this.stateOf(node);
  }

  name(node) {
    return this.functionName(this.functions[node]);
  }

  functionName(number) {
    return this.strings[this.names[number]] ?? "";
  }

  module(node) {
    return this.strings[this.modules[this.functions[node]]] ?? "";
  }

  /** The nodes of a stack, leaf first. */
  *path(node) {
    for (; node > 0; node = this.parents[node]) yield node;
  }

  /** The node of a state on top of a stack; one is added where there is none. */
  leaf(stack, state, stateName) {
    if (state === UNACCOUNTED) return this.#mark("[unaccounted]");
    const parent = stack > 0 ? stack : this.#mark("[unsampled]");
    const key = parent * STATES + state;
    let node = this.leaves.get(key);
    if (node === undefined) {
      if (!this.stateFunctions.has(state)) {
        this.stateFunctions.set(state, this.#newFunction(`[${stateName}]`, FIRST_STATE + state));
      }
      node = this.#newNode(parent, this.stateFunctions.get(state));
      this.leaves.set(key, node);
    }
    return node;
  }

  #mark(name) {
    if (!this.marks.has(name)) this.marks.set(name, this.#newNode(0, this.#newFunction(name, KIND_MARK)));
    return this.marks.get(name);
  }

  #newFunction(name, kind) {
    this.names.push(this.strings.push(name) - 1);
    this.modules.push(0);
    return this.kinds.push(kind) - 1;
  }

  #newNode(parent, number) {
    this.parents.push(parent);
    return this.functions.push(number) - 1;
  }
}

/** The weights of stacks by bin and thread. */
export class Weights {
  constructor(data) {
    this.edges = data.column("weight_edge");
    this.bins = this.edges.length - 1;
    this.thread = data.column("weight_thread");
    this.node = data.column("weight_node");
    this.ns = data.column("weight_ns");
    this.starts = startsOf(data.column("weight_bin"), this.bins);
  }

  /**
   * The time of each node in a selection, without what is above it. It adds up to the ledger of the selection:
   * whole bins have their weights; of the others single stalls count exactly, and stacks of the rest in
   * proportion. `pick(thread, state)` says what is selected.
   */
  ofSelection(from, to, pick, { stacks, stalls, ledger, stateNames }) {
    const own = { values: new Float64Array(stacks.count + 1024) };
    const first = firstAbove(this.edges, from - 1);
    const end = firstAbove(this.edges, to) - 1;
    const context = { stacks, stalls, ledger, stateNames, pick, own };
    if (end > first) this.#whole(first, end, context);
    const parts =
      end > first
        ? [
            [from, this.edges[first]],
            [this.edges[end], to],
          ]
        : [[from, to]];
    for (const [start, stop] of parts) {
      for (let at = start; at < stop;) {
        const bin = Math.min(this.bins - 1, Math.max(0, firstAbove(this.edges, at) - 1));
        const until = Math.min(stop, this.edges[bin + 1]);
        if (until <= at) break;
        this.#part(bin, at, until, context);
        at = until;
      }
    }
    return own.values;
  }

  /** Running time divides into user and kernel by the samples of the whole range, as a report does it. */
  #whole(first, end, context) {
    const { stacks, stalls, ledger, pick, own } = context;
    const rows = [this.starts[first], this.starts[end]];
    const { states } = ledger.states(this.edges[first], this.edges[end], stalls);
    const running = new Float64Array(states.length);
    for (let row = rows[0]; row < rows[1]; row += 1) {
      const state = stacks.stateOf(this.node[row]);
      if (state === USER || state === KERNEL) running[this.thread[row] * STATES + state] += this.ns[row];
    }
    for (let row = rows[0]; row < rows[1]; row += 1) {
      const state = stacks.stateOf(this.node[row]);
      if (!pick(this.thread[row], stacks.shownOf(this.node[row]))) continue;
      const place = this.thread[row] * STATES + state;
      const factor = state === USER || state === KERNEL ? states[place] / running[place] : 1;
      own.values[this.node[row]] += this.ns[row] * factor;
    }
    // Time that only the division by the whole range gives to a state, without a stack in it.
    for (let thread = 0; thread * STATES < states.length; thread += 1) {
      for (const state of [USER, KERNEL]) {
        const place = thread * STATES + state;
        if (running[place] === 0 && states[place] > 0 && pick(thread, state))
          this.#unsampled(state, states[place], context);
      }
    }
  }

  #part(bin, from, to, context) {
    const { stacks, stalls, ledger, pick } = context;
    const { states } = ledger.states(from, to, stalls);
    const place = (thread, state) => thread * STATES + state;
    const sampled = new Float64Array(states.length);
    for (let row = this.starts[bin]; row < this.starts[bin + 1]; row += 1) {
      sampled[place(this.thread[row], stacks.stateOf(this.node[row]))] += this.ns[row];
    }
    for (let thread = 0; thread * STATES < states.length; thread += 1) {
      stalls.eachPart(thread, from, to, (state, ns, stall) => {
        const at = place(thread, state);
        const counted = Math.min(ns, states[at]);
        states[at] -= counted;
        if (pick(thread, stalls.shown(stall, state)))
          this.#add(stacks.leaf(stalls.stack[stall], state, context.stateNames[state]), counted, context);
      });
    }
    for (let row = this.starts[bin]; row < this.starts[bin + 1]; row += 1) {
      const state = stacks.stateOf(this.node[row]);
      const at = place(this.thread[row], state);
      if (pick(this.thread[row], stacks.shownOf(this.node[row])))
        this.#add(this.node[row], (this.ns[row] * states[at]) / sampled[at], context);
    }
    for (let at = 0; at < states.length; at += 1) {
      const [thread, state] = [Math.floor(at / STATES), at % STATES];
      if (sampled[at] === 0 && states[at] > 0 && pick(thread, state))
        this.#unsampled(state, states[at], context);
    }
  }

  #unsampled(state, ns, context) {
    this.#add(context.stacks.leaf(0, state, context.stateNames[state]), ns, context);
  }

  #add(node, ns, { own }) {
    if (node >= own.values.length) {
      const larger = new Float64Array(2 * node);
      larger.set(own.values);
      own.values = larger;
    }
    own.values[node] += ns;
  }
}

/** A tree that is drawn: each node's parent, function and time with everything above it. */
export class FlameTree {
  /** The stacks as they are called, or from the leaf on: states, then the functions that waited. */
  static of(stacks, own, isReversed) {
    return isReversed ? FlameTree.#reversed(stacks, own) : FlameTree.#plain(stacks, own);
  }

  constructor(parents, functions, totals) {
    this.parents = parents;
    this.functions = functions;
    // Children come after their parents.
    for (let node = totals.length - 1; node > 0; node -= 1) totals[parents[node]] += totals[node];
    this.totals = totals;
    this.children = grouped(parents, totals.length);
  }

  static #plain(stacks, own) {
    const tree = new FlameTree(stacks.parents, stacks.functions, own.slice(0, stacks.count));
    tree.stateOf = (node) => stacks.shownOf(node);
    return tree;
  }

  static #reversed(stacks, own) {
    const [parents, functions, totals] = [[0], [0], [0]];
    const known = new Map();
    const functionCount = stacks.kinds.length;
    const states = [UNACCOUNTED];
    for (let leaf = 1; leaf < Math.min(own.length, stacks.count); leaf += 1) {
      if (own[leaf] <= 0) continue;
      let at = 0;
      for (const node of stacks.path(leaf)) {
        const key = at * functionCount + stacks.functions[node];
        let next = known.get(key);
        if (next === undefined) {
          next = parents.push(at) - 1;
          functions.push(stacks.functions[node]);
          totals.push(0);
          states.push(at === 0 ? stacks.shownOf(leaf) : UNACCOUNTED);
          known.set(key, next);
        }
        at = next;
      }
      totals[at] += own[leaf];
    }
    const tree = new FlameTree(parents, functions, Float64Array.from(totals));
    tree.stateOf = (node) => states[node];
    return tree;
  }

  /** The boxes that are wide enough to be seen: `{ node, depth, x, width }`, in parts of the focused node. */
  layout(focus, least, nameOf) {
    const boxes = [];
    const whole = this.totals[focus];
    if (!(whole > 0)) return boxes;
    const above = [];
    for (let node = focus; node > 0; node = this.parents[node]) above.unshift(node);
    above.forEach((node, depth) => boxes.push({ node, depth: depth + 1, x: 0, width: 1 }));
    boxes.unshift({ node: 0, depth: 0, x: 0, width: 1 });
    const open = [[focus, above.length, 0]];
    const { starts, rows } = this.children;
    while (open.length > 0) {
      const [parent, depth, left] = open.pop();
      let x = left;
      const children = [];
      for (let at = starts[parent]; at < starts[parent + 1]; at += 1) {
        // The root is its own parent.
        if (rows[at] !== parent && this.totals[rows[at]] / whole >= least) children.push(rows[at]);
      }
      children.sort((a, b) => (nameOf(this.functions[a]) < nameOf(this.functions[b]) ? -1 : 1));
      for (const node of children) {
        const width = this.totals[node] / whole;
        boxes.push({ node, depth: depth + 1, x, width });
        open.push([node, depth + 1, x]);
        x += width;
      }
    }
    return boxes;
  }
}
