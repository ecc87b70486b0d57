// SPDX-License-Identifier: Apache-2.0
//! Turns addresses into names, in two steps.
//!
//! 1. **Normalise**, at once and cheaply, because processes end: [`Processes`] turns an address of a process
//!    into a [`wallprof_model::Frame`], that is a module and an ELF virtual address, and keeps the module's file
//!    open. [`KernelStacks`] classifies kernel stacks; [`FrameTable`] numbers frames.
//! 2. **Resolve**, later and in batches: [`PendingFrames`] collects new frames, [`Resolver`] names those of
//!    modules, [`KernelSymbols`] those of the kernel. Names of run-time code come from files that its compiler
//!    writes ([`Processes::jit_names`]).
//!
//! Addresses are `u64`. A frame's address is an ELF virtual address of its module ([elf(5)]), so that it
//! means the same in each process and after a restart. Files of other users are read within limits
//! ([`ReadLimits`]), and their debug information by a child process ([`ReaderCommand`]).
//!
//! Owns pids, addresses and files; has no BPF, no perf and no recording.
//!
//! # Example
//!
//! A program names one of its own functions:
//!
//! ```
//! use wallprof_symbols::{ProcessKey, Processes, Resolver, ResolverOptions};
//!
//! #[unsafe(no_mangle)]
//! extern "C" fn example_function() {}
//!
//! let own = ProcessKey { pid: std::process::id(), generation: 0 };
//! let mut processes = Processes::default();
//! processes.scan(own).expect("a living process");
//!
//! let address = example_function as *const () as u64;
//! let mut frames = Vec::new();
//! processes.normalise_user(own, &[address], &mut frames);
//!
//! let module = frames[0].module.and_then(|id| processes.module_file(id)).expect("this program");
//! let mut resolver = Resolver::new(ResolverOptions { debug_limit: 0, ..ResolverOptions::default() });
//! let lines = resolver.resolve(&module, &[frames[0].address]);
//! assert_eq!(lines[0][0].symbol.as_deref(), Some("example_function"));
//! ```
//!
//! [elf(5)]: https://man7.org/linux/man-pages/man5/elf.5.html

#![warn(missing_docs)]

mod address_space;
mod compare_quota;
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
mod living_thread;
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
mod probe_sites;
mod process;
mod process_owner;
mod read_at;
mod read_limits;
mod reader;
mod resolver;
mod section;
mod served_headers;
mod served_module;
mod stored;
#[cfg(test)]
mod symbol_fixture;
mod trace_variable;
mod undisturbed;
mod vdso;

pub use address_space::INTERPRETED_METHOD;
pub use debug_file::{SYSTEM_DEBUG_DIR, hex_build_id};
pub use debug_server::DebugFileServer;
pub use debug_tree::{DebugTree, TreeLimits};
pub use demangle::readable_name;
pub use elf::{build_id, build_id_of_path, path_has_build_id};
pub use frame_table::FrameTable;
pub use function_table::FunctionTable;
pub use kallsyms::{KallsymsError, KernelRange, KernelSymbol, KernelSymbols};
pub use kernel_stack::KernelStacks;
pub use lazy_binding::{
    BoundFunction, LazyCalls, exported_variable, exports_function, may_be_dynamic_linker,
};
pub use living_thread::living_thread;
pub use maps::{MapsLine, executable_maps};
pub use module::{ModuleFile, Payer};
pub use needed::files_of_program;
pub use pending::{Batch, Origin, PendingFrames};
pub use probe_sites::{
    FileIdentity, ProbeSite, ProbeSites, ProbeSitesError, SiteProblem, SpanTarget, SpanTargetError,
    probe_sites,
};
pub use process::{
    CodeRange, MmapEvent, NormaliseLosses, ProcessKey, Processes, ScanError, normalise_kernel,
};
pub use read_limits::ReadLimits;
#[doc(hidden)]
pub use reader::functions_in_answer;
pub use reader::{READER_ARGUMENT, ReaderCommand, dispatch_reader, run_reader};
pub use resolver::{Resolver, ResolverOptions, UNREADABLE_DEBUG_FILES, lacks_debug_info};
pub use stored::{FileCounts, FileSearch, StoredProcesses};
pub use trace_variable::{TraceVariable, trace_variable};
pub use undisturbed::{KeepCpu, Undisturbed, keep_cpu_by, kept_cpu};
