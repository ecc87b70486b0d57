// SPDX-License-Identifier: Apache-2.0
//! The stack tests: each records a scenario whose stacks are all known, with the real binary, and compares
//! whole stacks: complete, nothing missing inside, everything in order.
//!
//! They run one after the other, and are skipped where BPF is not permitted.

mod expected;
mod taken;

mod chain;
mod images;
mod java;
mod loader;
mod node;
mod shapes;
mod threads;
