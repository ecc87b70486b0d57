//! The command line as clap reads it: names, help and shapes. What the values mean is checked by each command.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::demo::Scenario;
use crate::failure::Failure;

/// The file that `record` writes and readers read when none is named.
pub const DEFAULT_FILE: &str = "wallprof.db";

#[derive(Debug, Parser)]
#[command(
    name = "wallprof",
    version,
    about = "Where did this thread's wall time go, and why was it late?",
    max_term_width = 100,
    subcommand_required = true
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Record where threads spend their wall time
    Record(RecordArgs),
    /// Show each thread's ledger, latencies, top stalls, losses and cost
    Report(ReportArgs),
    /// List the stalls one by one, with stacks, waker and who ran instead
    Stalls(StallsArgs),
    /// Draw where the time went as a flame graph: an SVG with zoom and search for any browser
    Flame(FlameArgs),
    /// Write stacks and weights for other tools: folded, speedscope, pprof
    Export(ExportArgs),
    /// Compare two recordings in time per second of wall time: what takes longer, what appeared, what went
    Diff(DiffArgs),
    /// Turn what another profiler recorded into a recording: perf.data; add metrics and marks to one
    Import(ImportArgs),
    /// Name the frames of a recording that have no name, by build id, from debug files that are here now
    #[command(after_help = SYMBOLIZE_HELP)]
    Symbolize(SymbolizeArgs),
    /// Record all the time under bounded memory, and serve metrics, alerts' evidence and a flight recording
    Watch(WatchArgs),
    /// Arm, disarm or ask a running watcher, or have it keep a snapshot
    Ctl(CtlArgs),
    /// Say what this kernel, these permissions and this hardware allow
    Doctor(DoctorArgs),
    /// Run a built-in workload, record it, print the report and write the flame graph
    Demo(DemoArgs),
    /// Write man pages and shell completions: `make release`
    #[command(name = crate::documents::SUBCOMMAND, hide = true)]
    Documents(DocumentsArgs),
    /// What `record -- CMD` starts CMD with: waits until the probes are armed
    #[command(name = crate::record::held::SUBCOMMAND, hide = true)]
    Held(HeldArgs),
}

impl Command {
    /// Whether it looks at other processes or the kernel, or starts a command of the user's. All others read and write
    /// files.
    pub fn needs_capabilities(&self) -> bool {
        matches!(
            self,
            Command::Record(_) | Command::Watch(_) | Command::Doctor(_) | Command::Demo(_) | Command::Held(_)
        )
    }
}

#[derive(Debug, Default, Args)]
pub struct RecordArgs {
    /// Record these processes with all their threads; -p, -t, --name and --cgroup can be combined: a thread
    /// is recorded that any of them matches
    #[arg(short = 'p', long = "pid", value_name = "PID,…", value_delimiter = ',')]
    pub pids: Vec<String>,

    /// With -p: record the processes that these have started or will start, too, and theirs; a process that
    /// has lost its parent before the recording began is not found
    #[arg(long)]
    pub children: bool,

    /// Record these threads, nothing that they start
    #[arg(short = 't', long = "tid", value_name = "TID,…", value_delimiter = ',')]
    pub tids: Vec<String>,

    /// Record processes and threads with this name, such as 'feed*', as they come and as often as they come: a process
    /// by its name or its program's file, a thread by its own name (at most 15 characters); can be given several times
    #[arg(long = "name", value_name = "GLOB")]
    pub names: Vec<String>,

    /// Record a cgroup (v1 or v2) and those below it: a directory, or a path as /proc/PID/cgroup prints it
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,

    /// Record everything
    #[arg(short = 'a', long = "all")]
    pub all: bool,

    /// Only on these CPUs, such as 0-3,5
    #[arg(short = 'C', long = "cpu", value_name = "CPUS")]
    pub cpus: Option<String>,

    /// Tell everything that runs on these CPUs or interrupts them, such as 2,3: they are kept for the threads of --allow
    #[arg(long, value_name = "CPUS")]
    pub guard_cpus: Option<String>,

    /// Threads with such a name may run on guarded CPUs
    #[arg(long = "allow", value_name = "GLOB", requires = "guard_cpus")]
    pub allow: Vec<String>,

    /// End after this time: 30, 30s, 2m, 500ms (a bare number is seconds)
    #[arg(short = 'd', long = "duration", value_name = "DURATION")]
    pub duration: Option<String>,

    /// Samples a second of each CPU
    #[arg(short = 'F', long = "freq", value_name = "HZ", default_value = "99")]
    pub sample_hz: String,

    /// Also sample this event, by perf's names: cycles, page-faults, sched:sched_switch, cpu/event=0x3c/ …
    #[arg(short = 'e', long = "event", value_name = "EVENT")]
    pub events: Vec<String>,

    /// Keep waits and faults at least this long one by one, with stacks: 100us, 1.5ms
    #[arg(long, value_name = "DURATION", default_value = "100us")]
    pub min_stall: String,

    /// How user stacks are walked, by perf's names: auto and dwarf (unwind tables, frame pointers where code has none),
    /// fp (frame pointers alone), lbr (the CPU's branch records)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub call_graph: String,

    /// Trace every call and return by Intel PT, instead of sampling: full, all of it, or snapshot, what the buffers hold at
    /// the end; -o FILE.data keeps the trace itself, for import and perf
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "full")]
    pub intel_pt: Option<String>,

    /// Intel PT: the size of each CPU's buffer
    #[arg(long, value_name = "SIZE", default_value = "16MiB", requires = "intel_pt")]
    pub trace_buffer: String,

    /// The file to write
    #[arg(short = 'o', long = "output", value_name = "FILE", default_value = DEFAULT_FILE)]
    pub output: PathBuf,

    /// Say more on stderr
    #[arg(short = 'v', long)]
    pub verbose: bool,

    /// Start this command and record it from its first instruction; beside another target: record while it runs
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Clone, Debug, Default, Args)]
pub struct WatchArgs {
    /// Watch these processes with all their threads; -p, -t, --name and --cgroup can be combined: a thread
    /// is watched that any of them matches
    #[arg(short = 'p', long = "pid", value_name = "PID,…", value_delimiter = ',')]
    pub pids: Vec<String>,

    /// With -p: watch the processes that these have started or will start, too, and theirs; a process that
    /// has lost its parent before watching began is not found
    #[arg(long)]
    pub children: bool,

    /// Watch these threads, nothing that they start
    #[arg(short = 't', long = "tid", value_name = "TID,…", value_delimiter = ',')]
    pub tids: Vec<String>,

    /// Watch processes and threads with this name, such as 'feed*', as they come and as often as they come: a process by
    /// its name or its program's file, a thread by its own name (at most 15 characters); can be given several times
    #[arg(long = "name", value_name = "GLOB")]
    pub names: Vec<String>,

    /// Watch a cgroup (v1 or v2) and those below it: a directory, or a path as /proc/PID/cgroup prints it
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,

    /// Watch everything
    #[arg(short = 'a', long = "all")]
    pub all: bool,

    /// Waits and faults that make a thread at least this late are stalls [50us]
    #[arg(long, value_name = "DURATION")]
    pub threshold: Option<String>,

    /// Names for how late stalls make their threads [warning=100us,critical=500us]
    #[arg(long, value_name = "NAME=DURATION,…")]
    pub severity: Option<String>,

    /// Where metrics are served [127.0.0.1:9101]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,

    /// Where `wallprof ctl` finds it; whoever may write there may give orders [/run/wallprof.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<String>,

    /// Names by which clients may ask for the port, beside addresses, localhost and this machine's name
    #[arg(long, value_name = "NAME,…")]
    pub host_names: Option<String>,

    /// The flight recording [wallprof.db]
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub output: Option<String>,

    /// How much time the flight recording holds [10m]
    #[arg(long, value_name = "DURATION")]
    pub keep: Option<String>,

    /// How large it may be [512MiB]
    #[arg(long, value_name = "SIZE")]
    pub keep_size: Option<String>,

    /// Keep a snapshot of what surrounds a stall of this severity or more, once a minute at most
    #[arg(long, value_name = "SEVERITY")]
    pub on: Option<String>,

    /// Where snapshots go [beside the flight recording]
    #[arg(long, value_name = "DIR")]
    pub snapshot: Option<String>,

    /// Tell everything that runs on these CPUs or interrupts them, such as 2,3: they are kept for the threads of --allow
    /// [those that the kernel isolates]
    #[arg(long, value_name = "CPUS")]
    pub guard_cpus: Option<String>,

    /// Threads with such a name may run on guarded CPUs
    #[arg(long, value_name = "GLOB,…")]
    pub allow: Option<String>,

    /// Measure from this local time of day on: 08:00
    #[arg(long, value_name = "TIME")]
    pub arm_at: Option<String>,

    /// Until this one: 16:30
    #[arg(long, value_name = "TIME")]
    pub disarm_at: Option<String>,

    /// Take fewer stacks before watching costs more than this share of one CPU: 0.5%
    #[arg(long, value_name = "PERCENT")]
    pub max_cpu: Option<String>,

    /// Stack samples a second of each CPU [49]
    #[arg(short = 'F', long = "freq", value_name = "HZ")]
    pub sample_hz: Option<String>,

    /// Most series of metrics; what finds no place is counted together [5000]
    #[arg(long, value_name = "COUNT")]
    pub max_series: Option<String>,

    /// A file with these options, named as here (TOML); read again at SIGHUP
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// What a watcher is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Measure, until the hours say otherwise
    Arm,
    /// Stop measuring; the probes stay in place
    Disarm,
    /// Say how it is
    Status,
    /// Keep what the flight recording holds now
    Snapshot,
}

#[derive(Debug, Args)]
pub struct CtlArgs {
    /// What to do
    #[arg(value_name = "ORDER", value_enum)]
    pub order: Order,

    /// The watcher's socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The recording to read
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    /// One JSON object, for programs
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct StallsArgs {
    /// The recording to read
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    /// One JSON object a line, for programs
    #[arg(long)]
    pub json: bool,

    /// Only stalls that made their thread at least this late: 500us, 2ms (a bare number is seconds)
    #[arg(long, value_name = "DURATION")]
    pub longer_than: Option<String>,

    /// Only threads whose name matches, such as 'worker-*'
    #[arg(long, value_name = "GLOB")]
    pub thread: Option<String>,

    /// Only this kind: off-cpu or fault
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,

    /// Only this reason: lock, disk, preempted, runnable …
    #[arg(long, value_name = "REASON")]
    pub reason: Option<String>,

    /// Only stalls that end after this time: 12:32:52.331, RFC 3339, seconds since the epoch, +1.5s after the start
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,

    /// Only stalls that start before this time
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,

    /// Only the stall of this number: as an exemplar of `watch`, a finding or --json names it
    #[arg(long, value_name = "N", conflicts_with_all = ["longer_than", "thread", "kind", "reason", "from", "to"])]
    pub id: Option<u64>,

    /// Also the waits that threads chose: condition variables, poll, sleep, child
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// How many instructions the kernel's verifier walks through for each program
    #[arg(long, hide = true)]
    pub programs: bool,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The workload
    #[arg(value_name = "SCENARIO", value_enum, default_value_t)]
    pub scenario: Scenario,

    /// How long it runs: 10, 30s, 1m (a bare number is seconds)
    #[arg(short = 'd', long = "duration", value_name = "DURATION", default_value = "10s")]
    pub duration: String,

    /// The recording to write; the flame graph gets its name with .svg
    #[arg(short = 'o', long = "output", value_name = "FILE", default_value = "wallprof-demo.db")]
    pub output: PathBuf,
}

#[derive(Debug, Args)]
pub struct DocumentsArgs {
    /// Gets the folders man and completions
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The recording to compare with: before, or what is known to be good
    #[arg(value_name = "A")]
    pub a: PathBuf,

    /// The recording in question
    #[arg(value_name = "B")]
    pub b: PathBuf,

    /// Which time: wall, on-cpu or off-cpu; calls: the time of each function's calls, of Intel PT
    #[arg(long, value_name = "VIEW", default_value = "wall")]
    pub view: String,

    /// Also write a differential flame graph: widths are B's, red took longer than in A, blue shorter
    #[arg(short = 'o', long = "output", value_name = "FILE.svg")]
    pub output: Option<PathBuf>,

    /// One JSON object, for programs
    #[arg(long)]
    pub json: bool,

    /// Every difference, not only the largest
    #[arg(long)]
    pub all: bool,
}

/// What of a recording is drawn or exported.
#[derive(Debug, Args)]
pub struct SelectionArgs {
    /// What stacks weigh: wall, on-cpu, off-cpu, faults, wakers, calls (of Intel PT), or event:NAME (counts)
    #[arg(long, value_name = "VIEW", default_value = "wall")]
    pub view: String,

    /// Only threads whose name matches, such as 'worker-*'
    #[arg(long, value_name = "GLOB")]
    pub thread: Option<String>,

    /// Only the program's frames; all of the time stays
    #[arg(long, conflicts_with = "kernel")]
    pub user: bool,

    /// Only the kernel's frames; all of the time stays
    #[arg(long)]
    pub kernel: bool,
}

#[derive(Debug, Args)]
pub struct FlameArgs {
    /// The recording to read
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    #[command(flatten)]
    pub selection: SelectionArgs,

    /// Only from the second of this time on: 12:32:52.331, RFC 3339, seconds since the epoch, +1.5s after the start
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,

    /// Only to the end of the second of this time
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,

    /// The file to write: .svg, or .folded or .txt for folded stacks; - is SVG on standard output
    #[arg(short = 'o', long = "output", value_name = "FILE.svg", default_value = "wallprof.svg")]
    pub output: PathBuf,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The recording to read
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    /// The format: folded, speedscope or pprof
    #[arg(long = "to", value_name = "FORMAT", required = true)]
    pub format: String,

    #[command(flatten)]
    pub selection: SelectionArgs,

    /// Replace the names of functions, files, processes and threads, the same ones alike; the kernel's functions stay
    #[arg(long)]
    pub anonymize: bool,

    /// The file to write; - is standard output
    #[arg(short = 'o', long = "output", value_name = "OUT", required = true)]
    pub output: PathBuf,
}

#[derive(Debug, Default, Args)]
pub struct ImportArgs {
    /// The file to import, or the recording that --metrics and --marks are added to; - is standard input: `perf record --call-graph dwarf -o - … | wallprof import -`
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// More of the same recording: texts of `perf script` that are of a CPU each, or of a part of the time
    #[arg(value_name = "MORE")]
    pub more: Vec<PathBuf>,

    /// What FILE is: perf.data or perf-script (told by its first bytes when not given)
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,

    /// Find the recorded programs and libraries below this folder, instead of on this machine
    #[arg(long, value_name = "DIR")]
    pub symfs: Option<PathBuf>,

    /// Add the application's own numbers to a recording: lines of time, name, value, such as
    /// `12:32:52.331,orders,17`; times of day, RFC 3339, or s, ms, us, ns since the epoch
    #[arg(long, value_name = "FILE.csv")]
    pub metrics: Vec<PathBuf>,

    /// Add the application's own events to a recording: lines of time, text and, if it lasted, duration, such as
    /// `12:32:52.331,gap alarm,250ms`: `wallprof import --marks alarms.csv wallprof.db`
    #[arg(long, value_name = "FILE.csv")]
    pub marks: Vec<PathBuf>,

    /// Intel PT: decode from this time on: 12:32:52.331, RFC 3339, seconds since the epoch, +1.5s after the start
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,

    /// Intel PT: decode up to this time
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,

    /// Intel PT: decode these threads only
    #[arg(short = 't', long = "tid", value_name = "TID,…", value_delimiter = ',')]
    pub tids: Vec<u32>,

    /// Intel PT: decode what these CPUs ran, such as 0-3,5
    #[arg(short = 'C', long = "cpu", value_name = "CPUS")]
    pub cpus: Option<String>,

    /// The recording to write, or to add to
    #[arg(short = 'o', long = "output", value_name = "FILE", default_value = DEFAULT_FILE)]
    pub output: PathBuf,
}

#[derive(Debug, Args)]
pub struct SymbolizeArgs {
    /// The recording to complete
    #[arg(value_name = "FILE", default_value = DEFAULT_FILE)]
    pub file: PathBuf,

    /// A folder of debug files (.build-id/xx/yyyy.debug, or any files) or of unstripped programs; searched whole, before
    /// /usr/lib/debug; can be given several times
    #[arg(long = "debug-dir", value_name = "DIR")]
    pub debug_dirs: Vec<PathBuf>,
}

const SYMBOLIZE_HELP: &str = "Names that are there stay. A file counts only with the build id that was recorded. The \
    servers of DEBUGINFOD_URLS are asked for what is on no disk; DEBUGINFOD_CACHE_PATH, DEBUGINFOD_TIMEOUT, \
    DEBUGINFOD_MAXSIZE and DEBUGINFOD_MAXTIME mean what they mean to debuginfod-find(1).";

#[derive(Debug, Args)]
pub struct HeldArgs {
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Asked {
    Command(Box<Command>),
    /// `--help` or `--version`: this text, on stdout.
    Text(String),
}

/// The definition, for what is generated from it.
pub fn definition() -> clap::Command {
    CommandLine::command()
}

/// Reads the command line; what clap refuses becomes one sentence.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Asked, Failure> {
    let error = match CommandLine::try_parse_from(arguments) {
        Ok(line) => return Ok(Asked::Command(Box::new(line.command))),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Asked::Text(error.render().to_string())),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(Failure::usage(
                "no command was given: use demo, record, report, stalls, flame or diff (`wallprof --help` says more)",
            ))
        }
        ErrorKind::UnknownArgument => {
            Err(Failure::usage(stray_word(&error).unwrap_or_else(|| sentence(&error))))
        }
        _ => Err(Failure::usage(sentence(&error))),
    }
}

/// `record 1234` and `record sleep 5`: a word where `record` takes none.
fn stray_word(error: &clap::Error) -> Option<String> {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string)?;
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let stray = usage.contains("wallprof record") && !word.starts_with('-');
    let process = if word.starts_with(|c: char| c.is_ascii_digit()) { word } else { "PID" };
    stray
        .then(|| format!("`{word}` stands alone: a process is given as -p {process}, a command as -- {word}"))
}

fn sentence(error: &clap::Error) -> String {
    sentence_from_clap(&error.render().to_string())
}

/// clap prints `error: WHAT`, details, tips and the usage in paragraphs: the first paragraphs on one line.
fn sentence_from_clap(rendered: &str) -> String {
    let text = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let before_usage = text.split("\n\nUsage:").next().unwrap_or(text);
    let before_help = before_usage.split("\n\nFor more information").next().unwrap_or(before_usage);
    let lines = before_help.split('\n').map(str::trim).filter(|line| !line.is_empty());
    // "to pass '--x' as a value, use '-- --x'": nobody who misspells an option wants a command of that name.
    let lines: Vec<_> = lines.filter(|line| !line.starts_with("tip: to pass")).collect();
    format!("{} (`wallprof --help` says more)", lines.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Asked, Failure> {
        parse(
            std::iter::once("wallprof")
                .chain(line.split(' ').filter(|word| !word.is_empty()))
                .map(OsString::from),
        )
    }

    fn record(line: &str) -> RecordArgs {
        let Ok(Asked::Command(command)) = read(line) else { panic!("{line}") };
        let Command::Record(args) = *command else { panic!("{command:?}") };
        args
    }

    #[test]
    fn the_definition_is_sound() {
        definition().debug_assert();
    }

    #[test]
    fn perf_habits_hold() {
        let args = record("record -p 1,2 -F 199 -e cs -e faults -C 0-1 -d 30s -o x.db");
        assert_eq!((args.pids, args.sample_hz.as_str()), (vec!["1".into(), "2".into()], "199"));
        assert_eq!((args.events, args.cpus.as_deref()), (vec!["cs".into(), "faults".into()], Some("0-1")));
        let args = record("record -- make -j 2 -p 7");
        assert_eq!(args.command, ["make", "-j", "2", "-p", "7"]);
        assert_eq!((args.min_stall.as_str(), args.output), ("100us", DEFAULT_FILE.into()));
    }

    #[test]
    fn errors_are_one_line() {
        for line in ["", "recrod", "record --nmae x", "report a b", "stalls --longer-than", "record 1234"] {
            let failure = read(line).unwrap_err();
            assert_eq!(failure.exit, crate::failure::Exit::Usage, "{line}");
            assert!(!failure.message.contains('\n') && !failure.message.contains("error:"), "{failure:?}");
        }
        let unknown = read("record --durtaion 5").unwrap_err().message;
        assert!(unknown.contains("'--durtaion'") && unknown.contains("'--duration'"), "{unknown}");
        let stray = read("record 1234").unwrap_err().message;
        assert!(stray.contains("-p 1234") && stray.contains("-- 1234"), "{stray}");
    }

    #[test]
    fn help_is_not_an_error() {
        for line in ["--help", "--version", "record --help"] {
            assert!(matches!(read(line), Ok(Asked::Text(_))), "{line}");
        }
        assert!(!matches!(read("--help"), Ok(Asked::Text(text)) if text.contains("__")));
    }
}
