// SPDX-License-Identifier: Apache-2.0
//! Names of frames as formats of other tools hold them.

use std::borrow::Cow;

use wallprof_analysis::weights::{Function, Role};

use crate::escape::escape;

/// How perf's tools mark kernel functions in names.
pub(crate) const KERNEL_SUFFIX: &str = "_[k]";

/// A function's name on one line, with the mark of kernel functions.
pub(crate) fn marked_name<'a>(function: &'a Function<'_>) -> Cow<'a, str> {
    let name = escape(&function.name);
    if function.role == Role::Kernel { Cow::Owned(format!("{name}{KERNEL_SUFFIX}")) } else { name }
}

/// A thread's or process's name, which may be empty.
pub(crate) fn shown_comm(comm: &str) -> Cow<'_, str> {
    if comm.is_empty() { Cow::Borrowed("(unnamed)") } else { escape(comm) }
}
