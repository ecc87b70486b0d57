//! Addresses to names, in two steps.
//!
//! 1. **Normalise**, at once and cheaply, because processes die: [`Processes`] turns an address of a process into
//!    a [`wallprof_model::Frame`], a module and an ELF virtual address, and keeps the module's file open.
//!    [`KernelStacks`] reads kernel stacks by name; [`FrameTable`] numbers frames.
//! 2. **Resolve**, later and in batches: [`PendingFrames`] collects new frames, [`Resolver`] names those of modules,
//!    [`KernelSymbols`] those of the kernel. Run-time code is named by what its process writes down about it
//!    ([`Processes::jit_names`]).
//!
//! Knows pids, addresses and files; no BPF, no perf, no recording.

mod address_space;
mod debug_file;
mod debug_parser;
mod debug_reader;
mod debug_server;
mod debug_tree;
mod demangle;
mod elf;
mod elf_records;
mod exported;
mod file_access;
mod frame_table;
mod function_table;
mod jit;
mod kallsyms;
mod kernel_stack;
mod lazy_binding;
mod listed_symbols;
mod live_file;
mod mapping_quota;
mod maps;
mod mini_debug;
mod module;
mod module_quota;
mod needed;
mod open_files;
mod parsed_module;
mod pending;
mod plt;
mod private_copy;
mod process;
mod process_owner;
mod read_at;
mod reader;
mod resolver;
mod section;
mod served_module;
mod stored;
#[cfg(test)]
mod symbol_fixture;
mod vdso;
mod work_limits;

pub use debug_file::{SYSTEM_DEBUG_DIR, hex_build_id};
pub use debug_server::DebugFileServer;
pub use debug_tree::{DebugTree, TreeLimits};
pub use demangle::readable_name;
pub use elf::{build_id, build_id_of_path, path_has_build_id};
pub use frame_table::FrameTable;
pub use function_table::FunctionTable;
pub use kallsyms::{KallsymsError, KernelRange, KernelSymbol, KernelSymbols};
pub use kernel_stack::KernelStacks;
pub use lazy_binding::{BoundFunction, LazyCalls, exports_function, may_be_dynamic_linker};
pub use maps::{MapsLine, executable_maps};
pub use module::ModuleFile;
pub use needed::files_of_program;
pub use pending::{Batch, Origin, PendingFrames};
pub use process::{
    CodeRange, MmapEvent, NormaliseLosses, ProcessKey, Processes, ScanError, normalise_kernel,
};
#[doc(hidden)]
pub use reader::functions_in_answer;
pub use reader::{READER_ARGUMENT, ReaderCommand, dispatch_reader, run_reader};
pub use resolver::{Resolver, ResolverOptions, UNREADABLE_DEBUG_FILES, lacks_debug_info};
pub use stored::{FileCounts, FileSearch, StoredProcesses};
pub use work_limits::WorkLimits;
