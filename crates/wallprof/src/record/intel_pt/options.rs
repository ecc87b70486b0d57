// SPDX-License-Identifier: Apache-2.0
//! The options of a trace, and the options that a trace excludes.

use wallprof_analysis::bytes_from_size;

use crate::args::TraceMode;
use crate::failure::Failure;
use crate::record::options::RecordOptions;
use crate::record::target::Target;
use crate::span_options::SpanOptions;

/// Buffers of the kernel are powers of two, at least a page.
const SMALLEST_BUFFER: u64 = 4096;
const LARGEST_BUFFER: u64 = 4 << 30;

/// The options of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    pub mode: TraceMode,
    pub buffer_bytes: u64,
}

impl TraceOptions {
    pub fn from_args(mode: TraceMode, buffer: &str) -> Result<Self, Failure> {
        let bytes =
            bytes_from_size(buffer).map_err(|error| Failure::usage(format!("--trace-buffer: {error}")))?;
        if !(SMALLEST_BUFFER..=LARGEST_BUFFER).contains(&bytes) {
            return Err(Failure::usage(format!(
                "--trace-buffer {buffer} is not a size of a buffer: give one from 4KiB to 4GiB"
            )));
        }
        Ok(TraceOptions { mode, buffer_bytes: bytes.next_power_of_two() })
    }
}

/// Refuses options and targets that a trace does not support.
pub fn check_options(options: &RecordOptions) -> Result<(), Failure> {
    if !options.events.is_empty() {
        return Err(Failure::usage(
            "-e does not go with --intel-pt: sample events in a recording of their own",
        ));
    }
    if !options.guarded.cpus.is_empty() {
        return Err(Failure::usage(
            "--guard-cpus does not go with --intel-pt: guard CPUs in a recording of their own",
        ));
    }
    if options.recorder_cpus.is_some() {
        return Err(Failure::usage(
            "--recorder-cpus does not go with --intel-pt: start wallprof with `taskset -c CPUS`",
        ));
    }
    if !options.labels.is_empty() {
        return Err(Failure::usage(
            "--label does not go with --intel-pt: `runs` compares sampled recordings, name the file instead",
        ));
    }
    if !options.budgets.is_empty() {
        return Err(Failure::usage(
            "--budget does not go with --intel-pt: a trace has no spans, record it without --intel-pt",
        ));
    }
    if options.spans != SpanOptions::default() {
        return Err(Failure::usage(
            "--span does not go with --intel-pt: a trace has each call, see it with `wallprof calls`",
        ));
    }
    let Target::Given(given) = &options.target else { return Ok(()) };
    let refused = [
        (
            given.cgroup.is_some(),
            "--cgroup does not go with --intel-pt: give its processes (-p PID), or trace everything (-a)",
        ),
        (
            !given.names.is_empty(),
            "--name does not go with --intel-pt: give a running process (-p PID), or trace everything (-a)",
        ),
        (
            !given.processes.is_empty() && !given.threads.is_empty(),
            "-p and -t do not go together with --intel-pt: give one of them",
        ),
    ];
    match refused.iter().find(|(is_given, _)| *is_given) {
        Some((_, message)) => Err(Failure::usage(*message)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::failure::Exit;
    use crate::guarded::Guarded;
    use crate::record::target::GivenTargets;

    #[test]
    fn buffers_are_powers_of_two() {
        let bytes = |text| TraceOptions::from_args(TraceMode::Full, text).map(|options| options.buffer_bytes);
        assert_eq!(bytes("16MiB"), Ok(16 << 20));
        assert_eq!(bytes("5000"), Ok(8192));
        for wrong in ["0", "1k", "5GiB", "much"] {
            let failure = bytes(wrong).unwrap_err();
            assert!(failure.exit == Exit::Usage && failure.message.starts_with("--trace-buffer"), "{wrong}");
        }
    }

    #[test]
    fn unsupported_options_are_refused() {
        let output = Path::new("x.db");
        let with_event =
            RecordOptions { events: vec!["cs".into()], ..RecordOptions::of(Target::System, output) };
        let guarded = Guarded::from_options(Some("1"), &[]).expect("a CPU");
        let with_guard = RecordOptions { guarded, ..RecordOptions::of(Target::System, output) };
        let labels = [("version".to_owned(), "1.4".to_owned())].into();
        let with_label = RecordOptions { labels, ..RecordOptions::of(Target::System, output) };
        let process_and_thread =
            Target::Given(GivenTargets { processes: vec![1], threads: vec![1], ..GivenTargets::default() });
        for options in [
            with_event,
            with_guard,
            with_label,
            RecordOptions::of(Target::cgroup("/x"), output),
            RecordOptions::of(Target::names(&["x"]), output),
            RecordOptions::of(process_and_thread, output),
        ] {
            assert_eq!(check_options(&options).unwrap_err().exit, Exit::Usage);
        }
        assert_eq!(check_options(&RecordOptions::of(Target::System, output)), Ok(()));
    }
}
