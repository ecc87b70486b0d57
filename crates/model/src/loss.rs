// SPDX-License-Identifier: Apache-2.0
//! Everything that a recorder, an import or a watcher can fail to record: one registry of names and meanings.
//!
//! `docs/losses.md` has the same list; a test compares the two. Names are promised: programs read them.

macro_rules! losses {
    ($($variant:ident, $name:literal, $meaning:literal;)*) => {
        /// Why something is not in a recording.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Loss {
            $(#[doc = $meaning] $variant,)*
        }

        impl Loss {
    /// Those that say that waits of the threshold or longer were only added up.
    pub const OF_FOLDED_WAITS: [Loss; 3] = [Loss::WaitsFolded, Loss::StallsFolded, Loss::StallsRingFull];


            /// Each loss once, in the order of `docs/losses.md`.
            pub const ALL: &'static [Loss] = &[$(Loss::$variant),*];

            /// As it is in recordings, reports and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Loss::$variant => $name,)*
                }
            }

            /// What one is, in a few words.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Loss::$variant => $meaning,)*
                }
            }
        }
    };
}

losses! {
    StallsRingFull, "stalls_ring_full",
        "stalls that found a full buffer between the kernel and the recorder";
    ThreadEndsRingFull, "thread_ends_ring_full",
        "threads whose end found a full buffer between the kernel and the recorder: their last part of a \
         second is missing, and threads that lived no longer than that";
    StacksFull, "stacks_full",
        "stacks that found a full table of distinct stacks";
    SamplesFull, "samples_full",
        "samples that found a full table";
    LatencyFull, "latency_full",
        "latencies that found a full table";
    InterruptsFull, "interrupts_full",
        "interrupts that found a full table";
    ThreadsNoMemory, "threads_no_memory",
        "threads for which the kernel had no memory";
    StackScratchBusy, "stack_scratch_busy",
        "stacks that were not taken because probes were nested too deep";
    SleepsWithoutWakeup, "sleeps_without_wakeup",
        "sleeps that ended although no wakeup was seen: the kernel keeps some threads from being \
         traced";
    InterruptDepth, "interrupt_depth",
        "interrupts that were nested too deep to be timed";
    WaitsFolded, "waits_folded",
        "waits below a threshold that was raised under load: they are in ledgers and latencies, not \
         one by one";
    SwitchesUnseen, "switches_unseen",
        "switches away from a thread that were not seen";
    GuestsFull, "guests_full",
        "rows about guarded CPUs that found a full table";
    CrossCallsFull, "cross_calls_full",
        "calls of functions on other CPUs that found a full table";
    SpansFull, "spans_full",
        "busy periods that found a full table";
    SpansOverBudgetLeftOut, "spans_over_budget_left_out",
        "spans over their budget that are in the sums only, because there were too many";
    MarksOverwritten, "marks_overwritten",
        "marked spans that were overwritten before they were read: their states are unknown";
    MarksLeftOut, "marks_left_out",
        "marked spans that are nested too deep, and threads that got no memory for marks";
    ProbedSpansLost, "probed_spans_lost",
        "spans of --span that found a full buffer between the kernel and the recorder, or no memory for \
         their start";
    ProbedSpansWithoutEnd, "probed_spans_without_end",
        "spans of --span that began again before their end: calls that an exception or longjmp left, or a \
         second way out that has no probe";
    SpanProbesRemoved, "span_probes_removed",
        "options --span whose probes were removed while recording, because they were hit too often";
    LateSamplesLost, "late_samples_lost",
        "samples and waits late in spans that found a full buffer between the kernel and the recorder: the causes \
         of a tail are from the others";
    PeriodsAbandoned, "periods_abandoned",
        "busy periods that were not counted, because where their thread waits for work became known, or unknown, meanwhile";
    KernelLossUnknown, "kernel_loss_unknown",
        "losses that the kernel side counted under a number that this program does not know";
    RecordsUnknown, "records_unknown",
        "records from the kernel side that are too short, or of a type that this program does not \
         know";
    StallsOfUnknownThreads, "stalls_of_unknown_threads",
        "stalls of threads that ended before they could be described";
    CpusCameOnline, "cpus_came_online",
        "CPUs that came online: their first second is not sampled";
    FileDescriptorsExhausted, "file_descriptors_exhausted",
        "seconds at whose end no file could be opened, because process or machine had too many open";
    CountersProcessesLeftOut, "counters_processes_left_out",
        "recorded processes whose counters are not read, because there are too many";
    BindingsFull, "bindings_full",
        "stacks of the dynamic linker for which it is not known what was bound";
    MappingsRingFull, "mappings_ring_full",
        "mappings, forks and execs that found a full buffer";
    ModulesFull, "modules_full",
        "mapped files without a name and an unwind table, because all places are taken by files that \
         processes still have mapped";
    ProcessMappingsFull, "process_mappings_full",
        "mappings of a process beyond those that are kept of one";
    ProcessMappingsOverQuota, "process_mappings_over_quota",
        "mappings beyond those that are kept of all processes of one user";
    JitNamesFull, "jit_names_full",
        "lists of names of run-time code that are too large, or of too many processes";
    UnwindTablesRefused, "unwind_tables_refused",
        "unwind tables and lists of mappings without room left; Java virtual machines that may not be read";
    UnwindTablesOverQuota, "unwind_tables_over_quota",
        "unwind tables of files whose owner has used up a user's share of memory or rules";
    UnwindTablesEvicted, "unwind_tables_evicted",
        "unwind tables of files that no process has mapped, removed in favour of others";
    UnwindFilesUnreadable, "unwind_files_unreadable",
        "files without an unwind table, because they are damaged, were cut short, or are on a file \
         system whose reads may never return";
    UnwindTablesOverBudget, "unwind_tables_over_budget",
        "files whose unwind table takes more memory or time than a file gets, or had to wait for CPU \
         time of its owner";
    DebugFilesUnreadable, "debug_files_unreadable",
        "debug files that are damaged, too large, or took too long to read";
    NamesOverBudget, "names_over_budget",
        "files whose names were read later, because files of their owner had used up its CPU time";
    MappingsOverBudget, "mappings_over_budget",
        "mappings that were read later, because processes of their user had used up its CPU time";
    UnknownReference, "unknown_reference",
        "references to a thread, stack or other thing that was never described";
    StallsFolded, "stalls_folded",
        "stalls that are only counted, to keep the file small";
    SnapshotsOfASwarm, "snapshots_of_a_swarm",
        "spikes without a snapshot of their own, because snapshots came too fast";
    SecondsNotWritten, "seconds_not_written",
        "seconds that the watcher could not write to its flight recording";
    SecondsNotInTables, "seconds_not_in_tables",
        "seconds that the flight recording had lost before the watcher could write them as tables";
    SnapshotsFailed, "snapshots_failed",
        "snapshots that could not be written";
    InputTruncated, "input_truncated",
        "ends of imported files that are missing";
    InputDamaged, "input_damaged",
        "damaged parts of imported files, at which reading ended";
    RecordsMalformed, "records_malformed",
        "imported records that could not be understood";
    RecordsLate, "records_late",
        "imported records that came after later ones had been used";
    PerfDidNotFinish, "perf_did_not_finish",
        "imported files whose header perf did not complete";
    PerfLostRecords, "perf_lost_records",
        "records that perf itself lost";
    PerfLostSamples, "perf_lost_samples",
        "samples that perf itself lost";
    PerfThrottled, "perf_throttled",
        "times at which the kernel throttled perf's sampling";
    DeferredCallchains, "deferred_callchains",
        "user stacks that perf wrote apart from their samples, which are not imported";
    GuestSamples, "guest_samples",
        "samples inside of virtual machines, which are not imported";
    SamplesOfUnknownEvents, "samples_of_unknown_events",
        "samples of events that the imported file does not describe";
    SamplesOfEndedThreads, "samples_of_ended_threads",
        "samples of threads that had ended, whose numbers the kernel had released or another process has";
    FramesFull, "frames_full",
        "frames beyond the number that is kept of one import";
    MappingsLost, "mappings_lost",
        "mappings beyond the number that is kept of one import";
    BinariesMissing, "binaries_missing",
        "recorded files that were not found";
    BinariesDifferent, "binaries_different",
        "recorded files in whose place another file was found";
    HardwareTraceRecords, "hardware_trace_records",
        "records of a hardware trace that is not decoded";
    TraceBytesMissing, "trace_bytes_missing",
        "bytes of an Intel PT trace that are not in the imported file";
    TracePartsLeftOut, "trace_parts_left_out",
        "parts of an Intel PT trace that could not be kept for decoding";
    TraceFiltersUnknown, "trace_filters_unknown",
        "address filters of an Intel PT trace that could not be applied";
    TraceOverflows, "trace_overflows",
        "gaps in an Intel PT trace where the processor's buffer overflowed";
    TraceDataLost, "trace_data_lost",
        "gaps in an Intel PT trace where the kernel lost data";
    TraceBadPackets, "trace_bad_packets",
        "gaps in an Intel PT trace at packets that do not exist";
    TraceWithoutCode, "trace_without_code",
        "gaps in an Intel PT trace where the code is not known";
    TraceAndCodeDiffer, "trace_and_code_differ",
        "gaps in an Intel PT trace where it does not fit the code";
    TraceUnknownReturns, "trace_unknown_returns",
        "gaps in an Intel PT trace at returns to unknown callers";
    TraceEndlessCode, "trace_endless_code",
        "gaps in an Intel PT trace at code that never ends";
    TraceWithoutSynchronisation, "trace_without_synchronisation",
        "pieces of an Intel PT trace without a packet to start at";
    TraceWithoutTime, "trace_without_time",
        "pieces of an Intel PT trace without a time";
    TraceTimesCorrected, "trace_times_corrected",
        "times of an Intel PT trace that later ones contradicted";
    BranchesWithoutKind, "branches_without_kind",
        "printed branches without flags that name their kind";
    BranchesWithoutTarget, "branches_without_target",
        "printed branches without a target";
    SamplesAmongBranches, "samples_among_branches",
        "printed samples between the branches of a printed trace, which are not imported";
    BranchesAmongSamples, "branches_among_samples",
        "printed branches behind printed samples, which are not imported";
    SamplesWithoutTime, "samples_without_time",
        "printed samples without a time: each counts as one millisecond, or as its period in ns";
    PrintedLinesUnread, "printed_lines_unread",
        "printed lines that could not be understood";
    FunctionsOrThreadsBeyondLimit, "functions_or_threads_beyond_limit",
        "functions or threads beyond the number that is kept of printed traces";
    CallPathsFull, "call_paths_full",
        "calls whose path was not kept: they count as their last function";
    CallLatenciesCoarse, "call_latencies_coarse",
        "calls whose duration is kept to its octave only";
}

impl Loss {
    /// `None`: no name is equal to the text.
    pub fn from_name(name: &str) -> Option<Self> {
        Loss::ALL.iter().copied().find(|loss| loss.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const DOCUMENT: &str = include_str!("../../../docs/losses.md");

    #[test]
    fn document_lists_every_loss_with_its_meaning() {
        let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `"));
        let documented: Vec<String> = rows.map(str::to_owned).collect();
        let expected: Vec<String> =
            Loss::ALL.iter().map(|loss| format!("| `{}` | {} |", loss.name(), loss.meaning())).collect();
        assert_eq!(documented, expected);
    }

    #[test]
    fn names_are_distinct_and_lead_back() {
        let names: HashSet<&str> = Loss::ALL.iter().map(|loss| loss.name()).collect();
        assert_eq!(names.len(), Loss::ALL.len());
        assert!(Loss::ALL.iter().all(|loss| Loss::from_name(loss.name()) == Some(*loss)));
        assert_eq!(Loss::from_name("nothing"), None);
    }
}
