// SPDX-License-Identifier: Apache-2.0
//! The decoder's view of the recorded programs: the bytes of their code, and their functions.

/// An address space, numbered by the caller: one for each state of a process's mappings. Addresses in the
/// upper half belong to [`SpaceId::KERNEL`], whatever process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(pub u32);

impl SpaceId {
    /// No mapping is known. A thread whose process gets this space has started another program (`exec`).
    pub const NOTHING: SpaceId = SpaceId(0);

    /// The kernel's code, which is the same in all spaces.
    pub const KERNEL: SpaceId = SpaceId(u32::MAX);

    /// The space of `address` while `self` is that of the current process.
    #[inline]
    pub fn of_address(self, address: u64) -> SpaceId {
        if address >> 63 != 0 { SpaceId::KERNEL } else { self }
    }
}

/// A function, numbered by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(pub u32);

impl FunctionId {
    /// No symbol covers the address.
    pub const UNKNOWN: FunctionId = FunctionId(0);

    /// The first number of a kernel function.
    pub const FIRST_OF_KERNEL: FunctionId = FunctionId(1 << 31);
}

/// The function around an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its number.
    pub id: FunctionId,
    /// The target of its calls. A cold part that the compiler split off has the id and the entry of its
    /// function.
    pub entry: u64,
}

/// The recorded programs. Answers must not change, because the decoder caches them. A changed mapping is
/// another space.
pub trait Code {
    /// The code at `address` up to the end of contiguous bytes; `None` if no image is known.
    fn bytes(&self, space: SpaceId, address: u64) -> Option<&[u8]>;

    /// The function around `address`.
    fn function(&self, space: SpaceId, address: u64) -> Option<Function>;

    /// Whether the recording was limited to some addresses (`perf record --filter`).
    fn is_filtered(&self) -> bool {
        false
    }

    /// Whether the recording's filters leave the code at `address` out of the trace.
    fn is_left_out(&self, _space: SpaceId, _address: u64) -> bool {
        false
    }
}
