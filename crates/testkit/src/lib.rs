// SPDX-License-Identifier: Apache-2.0
//! Scaffolding that the tests of several crates share: skips that are counted, and, with the feature
//! `recorder`, the wallprof binary, its scenarios, real servers, and the JSON that the contract promises.
//!
//! Nothing in here is part of the product.

#[cfg(feature = "recorder")]
pub mod bpf_objects;
#[cfg(feature = "recorder")]
pub mod busy;
#[cfg(feature = "recorder")]
pub mod contract;
#[cfg(feature = "recorder")]
pub mod keep;
#[cfg(feature = "recorder")]
pub mod lines;
#[cfg(feature = "recorder")]
pub mod machine;
#[cfg(feature = "recorder")]
pub mod proc;
#[cfg(feature = "recorder")]
pub mod program;
#[cfg(feature = "recorder")]
pub mod recorder;
#[cfg(feature = "recorder")]
pub mod redis;
#[cfg(feature = "recorder")]
pub mod scenario;
#[cfg(feature = "recorder")]
pub mod stored;
#[cfg(feature = "recorder")]
pub mod stripped;
#[cfg(feature = "recorder")]
pub mod surroundings;

pub mod defect;

pub mod stacks;

mod skips;

pub use skips::{excuse, note, skip};
