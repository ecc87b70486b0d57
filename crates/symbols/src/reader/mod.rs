// SPDX-License-Identifier: Apache-2.0
//! A process of its own that reads the files of other users.
//!
//! A crafted file can make the parser of debug information allocate without end, keep it busy, or crash it,
//! and a read from a FUSE daemon may never return. So a child of the same program reads such files: within
//! limits of memory and CPU time, without capabilities, and unable to write to any file ([`confine`]). The
//! parent sends addresses and reads answers in a bounded format ([`wire`]), kills a child that is late, and
//! never waits for its end ([`reaper`]). Each file has a child of its own, whose memory ends with it.
//!
//! Owns the child from its start to its end; which files it reads is decided by [`crate::file_access`].

mod command;
mod confine;
mod process;
mod reaper;
mod serve;
pub(crate) mod wire;

pub use command::{READER_ARGUMENT, ReaderCommand};
pub(crate) use process::ReaderProcess;
pub use serve::run_reader;

use std::process::ExitCode;

/// How many functions a reader's answer to `count` addresses has; `None` for bytes that are no such answer.
/// For the fuzz target, because the bytes of a reader are foreign.
#[doc(hidden)]
pub fn functions_in_answer(bytes: &[u8], count: usize) -> Option<usize> {
    wire::decode_answer(bytes, count).map(|answer| answer.functions.len())
}

/// To be called first in `main`, before any argument is parsed. `Some`: this process is a reader, which has
/// ended. `None`: it is not, and from now on [`crate::ResolverOptions::default`] starts readers by executing
/// this program again.
pub fn dispatch_reader() -> Option<ExitCode> {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == READER_ARGUMENT) {
        return Some(run_reader());
    }
    ReaderCommand::register_this_program();
    None
}
