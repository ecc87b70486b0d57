// SPDX-License-Identifier: Apache-2.0
//! The generated view of bpf/: skeleton, records and constants. Also reads records from bytes.

use std::io::Read;
use std::sync::LazyLock;

use flate2::read::GzDecoder;

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::pedantic, missing_debug_implementations)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/wallprof.skel.rs"));
}

/// The object of bpf/, unpacked once. libbpf refers to it while the object is open.
fn object() -> &'static [u8] {
    static OBJECT: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let compressed = include_bytes!(concat!(env!("OUT_DIR"), "/wallprof.o.gz")).as_slice();
        let mut bytes = Vec::new();
        GzDecoder::new(compressed).read_to_end(&mut bytes).expect("build.rs compressed it");
        bytes
    });
    &OBJECT
}

/// The enumerators and limits of bpf/include.
#[allow(dead_code)]
pub mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}

pub(crate) use skeleton::types::{
    cpu_state, file_key, loss_counts, mark_slot, mark_slot_key, process_words, run_queue, unwind_file,
    unwind_mapping, unwind_process, wanted_process,
};
pub use skeleton::types::{
    cross_call_key, cross_call_value, delay_record, fault_facts, holder_sample_record, interrupt_key,
    late_record, latency_key, latency_value, ledger, look_record, marked_record, noise_counts, noise_key,
    other_thread, probed_record, ran, sample_key, sample_value, second_record, span_key, span_record,
    span_states, span_value, stack_record, stall_record, thread_record, trace_ids, wait_peer, wait_place,
};
pub(crate) use skeleton::*;

/// Types for which every pattern of bytes is a value.
///
/// # Safety
///
/// Implemented only for records of bpf/include/records.h and values of per-CPU maps: integers and
/// arrays of them.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($record:ty),*) => { $(
        // SAFETY: generated from C structs of plain integers.
        unsafe impl Plain for $record {}
    )* };
}

plain!(
    u32,
    u64,
    cpu_state,
    file_key,
    unwind_file,
    unwind_mapping,
    unwind_process,
    wanted_process,
    loss_counts,
    run_queue,
    noise_counts,
    noise_key,
    cross_call_key,
    cross_call_value,
    interrupt_key,
    latency_key,
    latency_value,
    sample_key,
    sample_value,
    second_record,
    span_key,
    late_record,
    mark_slot,
    mark_slot_key,
    marked_record,
    probed_record,
    span_record,
    span_value,
    stack_record,
    stall_record,
    look_record,
    thread_record,
    wait_place,
    process_words,
    delay_record,
    holder_sample_record
);

/// The record at the start of `bytes`; `None` when there are too few.
pub fn record_from_bytes<T: Plain>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: there are enough bytes, any of which make a `T` (Plain), and read_unaligned needs no alignment.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The bytes of a record, as the kernel side reads them.
pub(crate) fn bytes_of<T: Plain>(record: &T) -> &[u8] {
    // SAFETY: a `T` is plain integers without implicit padding, and the slice lives as long as it.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast::<u8>(), size_of::<T>()) }
}

/// The text of a C string field, up to its NUL, with invalid UTF-8 replaced.
pub fn name_from_bytes(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn constants_are_those_of_the_headers() {
        use wallprof_model::Reason;
        assert_eq!(constants::REASONS, Reason::COUNT as u64);
        assert_eq!(constants::REASON_OTHER, u64::from(Reason::Other.code()));
        assert_eq!(constants::REASON_MEMORY, u64::from(Reason::Memory.code()));
        let voluntary = Reason::ALL.into_iter().filter(|reason| reason.is_voluntary());
        let bits = voluntary.fold(0, |bits, reason| bits | 1 << reason.code());
        assert_eq!(constants::VOLUNTARY_REASONS, bits);
        assert_eq!(constants::NO_OFFSET, u64::MAX);
        assert_eq!(constants::SLEEPS, constants::REASONS + 2);
        let local_timer = constants::VECTOR_NAMES[constants::VECTOR_LOCAL_TIMER as usize];
        assert_eq!(local_timer, "local_timer");
    }

    #[test]
    fn ends_of_walks_are_those_of_the_model() {
        use constants as c;
        use wallprof_model::StackEnd;
        let ends = [
            (c::END_COMPLETE, StackEnd::Complete),
            (c::END_FRAME_POINTER, StackEnd::FramePointerEnd),
            (c::END_TRUNCATED, StackEnd::Truncated),
            (c::END_READ_FAILED, StackEnd::ReadFailed),
            (c::END_NO_MAPPINGS, StackEnd::NoMappings),
            (c::END_NO_TABLE, StackEnd::NoTable),
            (c::END_UNSUPPORTED, StackEnd::Unsupported),
            (c::END_BAD_FRAME, StackEnd::BadFrame),
            (c::END_JIT, StackEnd::Jit),
        ];
        for (code, end) in ends {
            assert_eq!(u8::try_from(code).ok().and_then(StackEnd::from_code), Some(end));
        }
    }

    #[test]
    fn short_input_is_no_record() {
        assert!(record_from_bytes::<stall_record>(&[0; 8]).is_none());
        assert_eq!(record_from_bytes::<u32>(&[1, 0, 0, 0, 9]), Some(1));
        assert_eq!(name_from_bytes(b"ab\0cd"), "ab");
        assert_eq!(name_from_bytes(b"\xff"), "\u{fffd}");
    }

    macro_rules! functions {
        ($($constant:ident $name:literal),* $(,)?) => { [$((libbpf_sys::$constant, $name)),*] };
    }

    /// Functions of the kernel by their number, which bpf.h gives out.
    const FUNCTIONS: [(u32, &str); 26] = functions![
        BPF_FUNC_copy_from_user_task "bpf_copy_from_user_task",
        BPF_FUNC_find_vma "bpf_find_vma",
        BPF_FUNC_get_attach_cookie "bpf_get_attach_cookie",
        BPF_FUNC_get_current_pid_tgid "bpf_get_current_pid_tgid",
        BPF_FUNC_get_current_task_btf "bpf_get_current_task_btf",
        BPF_FUNC_get_smp_processor_id "bpf_get_smp_processor_id",
        BPF_FUNC_get_stack "bpf_get_stack",
        BPF_FUNC_get_task_stack "bpf_get_task_stack",
        BPF_FUNC_ktime_get_boot_ns "bpf_ktime_get_boot_ns",
        BPF_FUNC_ktime_get_ns "bpf_ktime_get_ns",
        BPF_FUNC_ktime_get_tai_ns "bpf_ktime_get_tai_ns",
        BPF_FUNC_loop "bpf_loop",
        BPF_FUNC_map_delete_elem "bpf_map_delete_elem",
        BPF_FUNC_map_lookup_elem "bpf_map_lookup_elem",
        BPF_FUNC_map_lookup_percpu_elem "bpf_map_lookup_percpu_elem",
        BPF_FUNC_map_update_elem "bpf_map_update_elem",
        BPF_FUNC_probe_read_kernel "bpf_probe_read_kernel",
        BPF_FUNC_probe_read_kernel_str "bpf_probe_read_kernel_str",
        BPF_FUNC_probe_read_user "bpf_probe_read_user",
        BPF_FUNC_ringbuf_query "bpf_ringbuf_query",
        BPF_FUNC_ringbuf_reserve "bpf_ringbuf_reserve",
        BPF_FUNC_ringbuf_submit "bpf_ringbuf_submit",
        BPF_FUNC_seq_write "bpf_seq_write",
        BPF_FUNC_task_pt_regs "bpf_task_pt_regs",
        BPF_FUNC_task_storage_delete "bpf_task_storage_delete",
        BPF_FUNC_task_storage_get "bpf_task_storage_get",
    ];

    /// The numbers in the object's calls: instructions of 8 bytes (Documentation/bpf/standardization/instruction-set.rst)
    /// in the sections of ELF that can be executed (elf(5)).
    fn called() -> BTreeSet<u32> {
        const CALL: u8 = 0x85;
        const EXECUTABLE: u64 = 4;
        let object = object();
        let number = |at: usize, bytes: usize| {
            object[at..at + bytes].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let at = |at: usize| number(at, 8) as usize;
        let (sections, bytes, count) = (at(40), number(58, 2) as usize, number(60, 2) as usize);
        let mut called = BTreeSet::new();
        for section in (0..count).map(|section| sections + section * bytes) {
            if number(section + 8, 8) & EXECUTABLE == 0 {
                continue;
            }
            let code = &object[at(section + 24)..at(section + 24) + at(section + 32)];
            for instruction in code.chunks_exact(8).filter(|instruction| instruction[0] == CALL) {
                match instruction[1] >> 4 {
                    0 => _ = called.insert(u32::from_le_bytes(instruction[4..].try_into().expect("4 bytes"))),
                    1 => {}
                    kind => panic!("docs/licences.md says that there are no other calls: {kind}"),
                }
            }
        }
        called
    }

    #[test]
    fn functions_of_the_kernel_are_those_that_the_page_about_licences_has() {
        let page = include_str!("../../../docs/licences.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `bpf_"));
        let documented: BTreeSet<String> =
            rows.filter_map(|row| row.split_once('`')).map(|(name, _)| format!("bpf_{name}")).collect();
        let name = |number: u32| {
            let known = FUNCTIONS.iter().find(|(known, _)| *known == number);
            known.map_or_else(|| format!("function {number} of bpf.h"), |(_, name)| (*name).to_owned())
        };
        let called: BTreeSet<String> = called().into_iter().map(name).collect();
        assert!(called.len() > 20, "{called:?}");
        assert_eq!(
            called, documented,
            "say in docs/licences.md whether the kernel offers it to the GPL alone"
        );
    }
}
