// SPDX-License-Identifier: Apache-2.0
//! What a wait means, and where in the program it is: by rules about the functions of its stacks, and by the threads
//! that end the waits at one place.
//!
//! Pure: values in, values out. The recorder asks while it records, readers over a whole recording.

pub mod by_stack;
pub mod glob;
pub mod interner;
pub mod interpreted;
pub mod java;
pub mod node;
pub mod python;
mod short_name;
pub mod site;
pub mod waits;

pub use glob::{ByteStates, Glob, NoStates};
pub use short_name::{short_name, stable_name};
pub use site::Site;
