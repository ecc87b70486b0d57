// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Marks the operations of a program, so that `wallprof tail` can say why the slow ones are slow.
//!
//! ```
//! fn handle_order() {
//!     let _span = wallprof_span::span!("order");
//!     {
//!         let _stage = wallprof_span::span!("risk check"); // a stage of the order
//!     }
//! }
//! # handle_order();
//! ```
//!
//! A span lasts until its value is dropped, on the thread that created it. While nobody records the program, a
//! span takes a nanosecond or two; recorded, some 25. There is no system call per span. Spans of one thread nest,
//! at most 16 deep. Names are copied at their first use, 47 bytes of them; a thread has up to 31 kinds.
//!
//! This is `include/wallprof.h` in Rust: a process may use both, also from several libraries. Its memory has the
//! layout that is documented there. Outside of Linux on x86-64 and aarch64, spans do nothing.

#![warn(missing_docs)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod shared;

use std::marker::PhantomData;

/// A span that ends when it is dropped. It stays on its thread.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped: bind it to a variable"]
pub struct Span {
    thread: PhantomData<*const ()>,
}

impl Span {
    /// Opens a span of this kind on the calling thread.
    #[inline]
    pub fn begin(kind: &'static str) -> Self {
        #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
        shared::begin(kind);
        #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
        let _ = kind;
        Span { thread: PhantomData }
    }
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
        shared::end();
    }
}

/// Opens a span of this kind; see [`Span::begin`].
#[macro_export]
macro_rules! span {
    ($kind:expr) => {
        $crate::Span::begin($kind)
    };
}
