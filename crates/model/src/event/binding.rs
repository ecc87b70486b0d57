// SPDX-License-Identifier: Apache-2.0
//! Functions that the dynamic linker binds at their first call.

use crate::stack::StackId;

/// A user stack in which the dynamic linker binds a function at its first call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The user stack, whose leaf is in the linker.
    pub stack: StackId,
    /// How many frames of the stack are the linker's: the next one made the call.
    pub depth: u32,
    /// The function that is bound, as people read it; `None` where the call does not show it.
    pub symbol: Option<String>,
    /// The file that has the function; `None` where several or none could.
    pub library: Option<String>,
}
