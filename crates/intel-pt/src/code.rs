//! What the decoder asks of the recorded programs: the bytes of their code, and where functions start.

/// An address space as the caller numbers it: one for each state of a process's mappings. Addresses in the upper half
/// belong to [`SpaceId::KERNEL`], whatever process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(pub u32);

impl SpaceId {
    /// Nothing is mapped, as far as is known. A thread whose process comes to it has begun another program (`exec`).
    pub const NOTHING: SpaceId = SpaceId(0);

    pub const KERNEL: SpaceId = SpaceId(u32::MAX);

    /// The space that `address` belongs to while `self` is the current process's.
    #[inline]
    pub fn of_address(self, address: u64) -> SpaceId {
        if address >> 63 != 0 { SpaceId::KERNEL } else { self }
    }
}

/// A function as the caller numbers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(pub u32);

impl FunctionId {
    /// No symbol covers the address.
    pub const UNKNOWN: FunctionId = FunctionId(0);

    /// Functions of the kernel are numbered from here on.
    pub const FIRST_OF_KERNEL: FunctionId = FunctionId(1 << 31);
}

/// The function around an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    pub id: FunctionId,
    /// Where calls of it arrive. A cold part split off by the compiler has the id and the entry of its function.
    pub entry: u64,
}

/// The recorded programs. Answers must not change: what the decoder has read once it does not ask again. A mapping that
/// comes or goes is another space.
pub trait Code {
    /// The code at `address`, as far as it is contiguous; `None` where no image is known.
    fn bytes(&self, space: SpaceId, address: u64) -> Option<&[u8]>;

    /// The function that `address` lies in.
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
