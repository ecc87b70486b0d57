// SPDX-License-Identifier: Apache-2.0
//! Stacks as sources deliver them: ids first, contents once.

/// A source's own number for one distinct stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u64);

/// A source's own number for one distinct frame (module and address).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// A source's own number for one distinct module: a file that code was mapped from. No number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub u32);

/// Where the code of a frame is from. The numbers are part of the recording format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FrameKind {
    /// Code of a file that a process mapped.
    Native = 0,
    /// Code of the kernel or of its modules.
    Kernel = 1,
    /// Code that is in no file, such as what a runtime compiled.
    Jit = 2,
}

impl FrameKind {
    /// By the number in recordings. `None`: no kind has this number.
    pub fn from_code(code: u8) -> Option<Self> {
        [FrameKind::Native, FrameKind::Kernel, FrameKind::Jit].get(usize::from(code)).copied()
    }

    /// The name in recordings and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            FrameKind::Native => "native",
            FrameKind::Kernel => "kernel",
            FrameKind::Jit => "jit",
        }
    }
}

/// How a walk ended. Only `Complete` says that the outermost frame is a known start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum StackEnd {
    /// The unwind table says that the outermost function starts a thread. Kernel stacks have this end, too.
    Complete = 0,
    /// Walked by frame pointer: where it ended was not proven to be the thread's start.
    FramePointerEnd = 1,
    /// More frames than the walker keeps.
    Truncated = 2,
    /// A stack address could not be read.
    ReadFailed = 3,
    /// The process was too new: where its files are mapped was not known yet.
    NoMappings = 4,
    /// In a file without an unwind table, and the frame pointer led nowhere.
    NoTable = 5,
    /// An unwind rule that rows cannot express, or that needs a register lost on the way.
    Unsupported = 6,
    /// Frames that do not ascend, or a return address that is none.
    BadFrame = 7,
    /// In code that is in no file (made at run time), and the frame pointer led nowhere.
    Jit = 8,
}

impl StackEnd {
    /// Each variant once, in the order of the numbers.
    pub const ALL: [StackEnd; 9] = [
        StackEnd::Complete,
        StackEnd::FramePointerEnd,
        StackEnd::Truncated,
        StackEnd::ReadFailed,
        StackEnd::NoMappings,
        StackEnd::NoTable,
        StackEnd::Unsupported,
        StackEnd::BadFrame,
        StackEnd::Jit,
    ];

    /// By the number in recordings. `None`: no end has this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The name in recordings and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            StackEnd::Complete => "complete",
            StackEnd::FramePointerEnd => "frame_pointer_end",
            StackEnd::Truncated => "truncated",
            StackEnd::ReadFailed => "read_failed",
            StackEnd::NoMappings => "no_mappings",
            StackEnd::NoTable => "no_table",
            StackEnd::Unsupported => "unsupported_rule",
            StackEnd::BadFrame => "bad_frame",
            StackEnd::Jit => "jit",
        }
    }
}

/// A file that code was mapped from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Module {
    /// As its process sees it, or `[vdso]`. It may be gone, or another file on this machine.
    pub path: String,
    /// The note `NT_GNU_BUILD_ID` of the file. `None`: it has none, or it was not read.
    pub build_id: Option<Vec<u8>>,
}

/// The build id and the place of the code of a module whose file a source did not find. Frames in it have
/// offsets in the file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MissingFile {
    /// The note `NT_GNU_BUILD_ID`, as the profiler recorded it.
    pub build_id: Vec<u8>,
    /// Where the first executable mapping began in the file: the start of the page in which its code begins.
    pub code_offset: u64,
}

/// The functions with which a thread gives its CPU to others: of glibc, musl and Go.
pub const YIELDS: [&str; 4] = ["sched_yield", "__sched_yield", "runtime.osyield", "runtime.osyield.abi0"];

/// Whether this file is a library that stands between programs and the kernel, or that runs their threads.
pub fn is_runtime_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    match stem(name) {
        "libc" | "libpthread" | "ld" | "librt" | "libstdc++" | "libc++" | "libgcc_s" | "libgomp" => true,
        _ => {
            is_allocator_library(path)
                || matches!(name, "[vdso]" | "[vsyscall]")
                || name.starts_with("linux-vdso")
        }
    }
}

/// Whether a file is an allocator that replaces the one of the C library.
pub fn is_allocator_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    match stem(name) {
        "libjemalloc" | "libmimalloc" => true,
        // libtcmalloc_minimal, libtcmalloc_and_profiler …
        stem => stem.starts_with("libtcmalloc"),
    }
}

fn stem(name: &str) -> &str {
    name.split(['.', '-']).next().unwrap_or(name)
}

/// One code address in a form that means the same in another process and on another day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Where the code is from.
    pub kind: FrameKind,
    /// `None` for the kernel, and for code that is in no file.
    pub module: Option<ModuleId>,
    /// ELF virtual address in `module`, or the offset in its file where the file is missing; without a module
    /// the address as it was in the process.
    pub address: u64,
}

/// One function at a frame; inlined ones come innermost first, the physical one last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolLine {
    /// The demangled name. `None`: nothing names the address.
    pub symbol: Option<String>,
    /// Bytes from the symbol's start.
    pub offset: Option<u64>,
    /// The source file, as the debug information has it. `None` without that.
    pub file: Option<String>,
    /// The line in `file`, from 1 on. `None` without debug information.
    pub line: Option<u32>,
    /// The function was inlined into the function of the next line, which has the same address.
    pub inlined: bool,
}
