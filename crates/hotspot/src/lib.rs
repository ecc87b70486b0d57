// SPDX-License-Identifier: Apache-2.0
//! The code that a HotSpot virtual machine has made: how to find the caller of its frames, and the names and lines of
//! its methods. Read from outside, while it runs and without its help, so that a JVM needs no option for it.
//!
//! `libjvm.so` exports a description of its own data, which JDK's Serviceability Agent and jstack read
//! (`src/hotspot/share/runtime/vmStructs.cpp`): where each field lies. By it the code cache is read: which blocks of
//! it are in use, and of each the size of its frame, its method, and its calls. Compiled code uses the frame pointer
//! for other values, unless Java was started with `-XX:+PreserveFramePointer`.
//!
//! The crate is pure: memory is read through [`Memory`]. Whatever it contains, reading it ends, within bounds.
//! What the JVM changes while it is read may be read half: the next reading mends that.

mod cache;
mod layout;
mod memory;
mod methods;
mod names;
#[cfg(test)]
mod tests;

pub use cache::{CodeCache, CodeSpan};
pub use layout::{VARIABLES, Variables};
pub use memory::Memory;
pub use methods::Function;
