//! What the watcher was asked for: options and configuration put together, read and checked.
//!
//! An option on the command line wins over the same one in the file. An error names the option, or the file with line and
//! field. Looks at nothing outside but that file and the environment's folders of a service.

use std::env;
use std::fmt::Display;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use wallprof_analysis::{Glob, bytes_from_size, ns_from_duration};
use wallprof_probe::facts::files::HostFiles;
use wallprof_recording::Retention;
use wallprof_watch::{Config, Entry, HostNames, Hours, Severities};

use crate::args::{DEFAULT_FILE, RecordArgs, WatchArgs};
use crate::cpu_list::cpus_from_option;
use crate::failure::Failure;
use crate::guarded::Guarded;
use crate::open;
use crate::record::{RecordOptions, Target};
use crate::rights::as_caller;

/// Where services have their sockets.
pub const RUN_FOLDER: &str = "/run";
pub const SOCKET_NAME: &str = "wallprof.sock";
/// A configuration is a page; a longer file is something else.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Less than this and a snapshot of a spike would not be whole.
const LEAST_KEEP_NS: u64 = 30_000_000_000;
const LEAST_KEEP_BYTES: u64 = 16 << 20;
/// Labels and buckets of so many series are 5 MiB.
const MOST_SERIES: usize = 100_000;

/// A watch to keep.
#[derive(Clone, Debug)]
pub struct Settings {
    pub record: RecordOptions,
    pub severities: Severities,
    pub listen: SocketAddr,
    pub socket: PathBuf,
    pub hosts: HostNames,
    /// The severity from which on a stall makes a snapshot.
    pub on: Option<String>,
    /// Where snapshots go.
    pub snapshots: PathBuf,
    pub hours: Option<Hours>,
    /// Share of one CPU.
    pub max_cpu: Option<f64>,
    pub max_series: usize,
}

/// A value with where it was given.
struct Given {
    text: String,
    from: String,
}

impl Given {
    fn wrong(&self, error: impl Display) -> Failure {
        Failure::usage(format!("{}: {error}", self.from))
    }
}

impl Settings {
    pub fn read(args: &WatchArgs) -> Result<Self, Failure> {
        let config = args.config.as_deref().map(read_config).transpose()?.unwrap_or_default();
        Self::from_both(args, &config)
    }

    fn from_both(args: &WatchArgs, config: &Config) -> Result<Self, Failure> {
        let file = args.config.as_deref().unwrap_or(Path::new(""));
        let given = |name: &str, option: &Option<String>, entry: &Option<Entry>, usual: &str| {
            given_if(file, name, option, entry)
                .unwrap_or_else(|| Given { text: usual.into(), from: name.into() })
        };
        let optional =
            |name: &str, option: &Option<String>, entry: &Option<Entry>| given_if(file, name, option, entry);
        let severities =
            given("--severity", &args.severity, &config.severity, "warning=100us,critical=500us");
        let severities = Severities::parse(&severities.text).map_err(|error| severities.wrong(error))?;
        let listen = given("--listen", &args.listen, &config.listen, "127.0.0.1:9101");
        let output = given("--output", &args.output, &config.output, &usual_recording());
        let output = PathBuf::from(output.text);
        let snapshots = optional("--snapshot", &args.snapshot, &config.snapshot);
        let retention = retention(
            &given("--keep", &args.keep, &config.keep, "10m"),
            &given("--keep-size", &args.keep_size, &config.keep_size, "512MiB"),
        )?;
        let threshold = given("--threshold", &args.threshold, &config.threshold, "50us");
        let sample_hz = given("--freq", &args.sample_hz, &config.freq, "49");
        let guarded = guarded(
            optional("--guard-cpus", &args.guard_cpus, &config.guard_cpus),
            optional("--allow", &args.allow, &config.allow),
        )?;
        let target = target(args, config, file)?;
        let record = RecordArgs { output: output.clone(), ..target };
        let record = record_options(record, &threshold, &sample_hz, retention)?;
        Ok(Settings {
            record: RecordOptions { guarded, ..record },
            on: on(optional("--on", &args.on, &config.on), &severities)?,
            severities,
            listen: listen.text.parse().map_err(|_| {
                listen.wrong(format!("`{}` is no address with a port: write 127.0.0.1:9101", listen.text))
            })?,
            socket: given("--socket", &args.socket, &config.socket, &usual_socket()).text.into(),
            hosts: host_names(optional("--host-names", &args.host_names, &config.host_names)),
            snapshots: snapshots.map_or_else(|| folder_of(&output), |given| PathBuf::from(given.text)),
            hours: hours(
                optional("--arm-at", &args.arm_at, &config.arm_at),
                optional("--disarm-at", &args.disarm_at, &config.disarm_at),
            )?,
            max_cpu: optional("--max-cpu", &args.max_cpu, &config.max_cpu).map(share_of_cpu).transpose()?,
            max_series: max_series(&given("--max-series", &args.max_series, &config.max_series, "5000"))?,
        })
    }

    /// What differs between these settings and `new` and cannot be changed while it runs.
    pub fn fixed_differences(&self, new: &Settings) -> Vec<&'static str> {
        let differences = [
            (self.record.target != new.record.target, "what is watched"),
            (self.listen != new.listen, "listen"),
            (self.socket != new.socket, "socket"),
            (self.hosts != new.hosts, "host-names"),
            (self.record.output != new.record.output, "output"),
            (self.record.retention != new.record.retention, "keep"),
            (self.record.sample_hz != new.record.sample_hz, "freq"),
            (self.record.guarded != new.record.guarded, "guard-cpus"),
            (self.max_series != new.max_series, "max-series"),
        ];
        differences.into_iter().filter(|(differs, _)| *differs).map(|(_, name)| name).collect()
    }
}

/// This machine's name, and the given ones.
fn host_names(given: Option<Given>) -> HostNames {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let given = given.map(|given| given.text).unwrap_or_default();
    let names = given.split(',').map(str::trim).filter(|name| !name.is_empty());
    HostNames::new(names.map(str::to_owned).chain([own]))
}

fn read_config(path: &Path) -> Result<Config, Failure> {
    let name = path.display();
    let unreadable = |error: &dyn Display| {
        Failure::usage(format!(
            "cannot read the configuration {name}: {error}: name a file that this user may read"
        ))
    };
    // At a SIGHUP the recorder's main loop must not wait for the other end of a FIFO.
    let file = as_caller(|| open::regular_file(path)).map_err(|error| unreadable(&error))?;
    let mut text = String::new();
    file.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text).map_err(|error| unreadable(&error))?;
    if text.len() as u64 > MAX_CONFIG_BYTES {
        return Err(unreadable(&"it is too long to be one"));
    }
    Config::parse(&text).map_err(|error| Failure::usage(format!("{name}, {error}")))
}

fn given_if(file: &Path, name: &str, option: &Option<String>, entry: &Option<Entry>) -> Option<Given> {
    let from_entry = |entry: &Entry| Given {
        text: entry.text.clone(),
        from: format!("{}, line {}: {}", file.display(), entry.line, name.trim_start_matches('-')),
    };
    match option {
        Some(text) => Some(Given { text: text.clone(), from: name.into() }),
        None => entry.as_ref().map(from_entry),
    }
}

/// What is watched: of the command line if it names anything, else of the file. Checked here, so that an
/// error about the file's names the line.
fn target(args: &WatchArgs, config: &Config, file: &Path) -> Result<RecordArgs, Failure> {
    let given = RecordArgs {
        pids: args.pids.clone(),
        children: args.children,
        tids: args.tids.clone(),
        names: args.names.clone(),
        cgroup: args.cgroup.clone(),
        all: args.all,
        ..RecordArgs::default()
    };
    let names_any = !(given.pids.is_empty() && given.tids.is_empty() && given.names.is_empty());
    let entries = &config.targets;
    if names_any || given.children || given.cgroup.is_some() || given.all || *entries == Default::default() {
        return Ok(given);
    }
    let list = |entry: &Option<Entry>| -> Vec<String> {
        entry.iter().flat_map(|entry| entry.text.split(',')).map(|text| text.trim().to_string()).collect()
    };
    let read = RecordArgs {
        pids: list(&entries.pid),
        children: entries.children,
        tids: list(&entries.tid),
        names: list(&entries.name),
        cgroup: entries.cgroup.as_ref().map(|entry| PathBuf::from(&entry.text)),
        all: entries.all,
        ..RecordArgs::default()
    };
    let wrong = |place: String| {
        move |failure: Failure| Failure { message: format!("{place}: {}", failure.message), ..failure }
    };
    for (entry, alone) in [
        (&entries.pid, RecordArgs { pids: read.pids.clone(), ..RecordArgs::default() }),
        (&entries.tid, RecordArgs { tids: read.tids.clone(), ..RecordArgs::default() }),
        (&entries.name, RecordArgs { names: read.names.clone(), ..RecordArgs::default() }),
    ] {
        if let Some(entry) = entry {
            let place = format!("{}, line {}", file.display(), entry.line);
            Target::from_args(&alone).map_err(wrong(place))?;
        }
    }
    Target::from_args(&read).map_err(wrong(file.display().to_string()))?;
    Ok(read)
}

fn record_options(
    target: RecordArgs,
    threshold: &Given,
    sample_hz: &Given,
    retention: Retention,
) -> Result<RecordOptions, Failure> {
    let min_stall_ns = duration_ns(threshold)?;
    match sample_hz.text.parse::<u32>() {
        Ok(1..) => {}
        _ => return Err(sample_hz.wrong(format!("`{}` is no number of samples a second", sample_hz.text))),
    }
    let record =
        RecordArgs { sample_hz: sample_hz.text.clone(), min_stall: format!("{min_stall_ns}ns"), ..target };
    Ok(RecordOptions { retention: Some(retention), ..RecordOptions::from_args(record)? })
}

/// A bare number could mean seconds or microseconds: a unit is asked for.
fn duration_ns(given: &Given) -> Result<u64, Failure> {
    let text = given.text.trim();
    match ns_from_duration(text) {
        Ok(0) => Err(given.wrong("0 is no duration: write 50us or 10m")),
        Ok(_) if text.ends_with(|c: char| c.is_ascii_digit() || c == '.') => {
            Err(given.wrong(format!("{text} has no unit: write {text}us, {text}ms or {text}s")))
        }
        Ok(ns) => Ok(ns),
        Err(error) => Err(given.wrong(error)),
    }
}

fn retention(keep: &Given, size: &Given) -> Result<Retention, Failure> {
    let keep_ns = duration_ns(keep)?;
    if keep_ns < LEAST_KEEP_NS {
        return Err(
            keep.wrong("keep at least 30s: what surrounds a stall must be there when it is looked at")
        );
    }
    let keep_bytes = bytes_from_size(&size.text).map_err(|error| size.wrong(error))?;
    match keep_bytes < LEAST_KEEP_BYTES {
        true => Err(size.wrong("keep at least 16MiB: names and stacks alone take some")),
        false => Ok(Retention { keep_ns, keep_bytes }),
    }
}

/// Without a name of a CPU those that the kernel isolates.
fn guarded(cpus: Option<Given>, allow: Option<Given>) -> Result<Guarded, Failure> {
    let list = cpus.map(|given| cpus_from_option(&given.from, &given.text)).transpose()?;
    let allowed = allow.map(globs).transpose()?.unwrap_or_default();
    let named = Guarded { cpus: list.unwrap_or_default(), allowed };
    Ok(named.or_isolated(&HostFiles))
}

fn globs(given: Given) -> Result<Vec<Glob>, Failure> {
    given.text.split(',').map(|text| Glob::new(text.trim()).map_err(|error| given.wrong(error))).collect()
}

fn on(given: Option<Given>, severities: &Severities) -> Result<Option<String>, Failure> {
    let Some(given) = given else { return Ok(None) };
    match severities.least_ns(&given.text) {
        Some(_) => Ok(Some(given.text)),
        None => {
            let names: Vec<_> = severities.names().collect();
            Err(given.wrong(format!("`{}` is no severity: there are {}", given.text, names.join(", "))))
        }
    }
}

fn hours(arm: Option<Given>, disarm: Option<Given>) -> Result<Option<Hours>, Failure> {
    match (arm, disarm) {
        (None, None) => Ok(None),
        (Some(arm), Some(disarm)) => {
            Hours::parse(&arm.text, &disarm.text).map(Some).map_err(|error| arm.wrong(error))
        }
        (Some(given), None) => Err(given.wrong("without --disarm-at it never ends: give both")),
        (None, Some(given)) => Err(given.wrong("without --arm-at it never begins: give both")),
    }
}

/// `0.5%` of one CPU.
fn share_of_cpu(given: Given) -> Result<f64, Failure> {
    let percent = given.text.trim().strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    match percent {
        Some(percent) if percent > 0.0 && percent <= 10_000.0 => Ok(percent / 100.0),
        _ => Err(given.wrong(format!("`{}` is no share of a CPU: write 0.5%", given.text))),
    }
}

fn max_series(given: &Given) -> Result<usize, Failure> {
    match given.text.parse() {
        Ok(series @ 1..=MOST_SERIES) => Ok(series),
        _ => Err(given.wrong(format!("`{}` is no number from 1 to {MOST_SERIES}", given.text))),
    }
}

/// systemd names a service's own folders in the environment; of several the first.
fn service_folder(variable: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os(variable)?).next().filter(|path| path.is_absolute())
}

fn usual_recording() -> String {
    let folder = service_folder("STATE_DIRECTORY").unwrap_or_default();
    folder.join(DEFAULT_FILE).to_string_lossy().into_owned()
}

fn usual_socket() -> String {
    let folder = service_folder("RUNTIME_DIRECTORY").unwrap_or_else(|| RUN_FOLDER.into());
    folder.join(SOCKET_NAME).to_string_lossy().into_owned()
}

fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;
    use crate::record::GivenTargets;

    fn args() -> WatchArgs {
        WatchArgs { all: true, ..WatchArgs::default() }
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_string())
    }

    fn with_config(args: WatchArgs, config: &str) -> Result<Settings, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.toml");
        std::fs::write(&path, config).unwrap();
        Settings::read(&WatchArgs { config: Some(path), ..args })
    }

    #[test]
    fn without_anything_it_is_as_documented() {
        let settings = Settings::read(&args()).unwrap();
        assert_eq!(settings.listen.to_string(), "127.0.0.1:9101");
        assert_eq!(settings.severities, Severities::default());
        assert_eq!(settings.record.min_stall_ns, 50_000);
        let kept = settings.record.retention.unwrap();
        assert_eq!((kept.keep_ns, kept.keep_bytes), (600_000_000_000, 512 << 20));
        assert_eq!((settings.max_cpu, settings.hours, settings.on), (None, None, None));
        assert_eq!(settings.snapshots, Path::new("."));
    }

    #[test]
    fn guarded_cpus_and_who_may_be_there() {
        let guarded = |config: &str| with_config(args(), config).map(|settings| settings.record.guarded);
        let two = guarded("guard-cpus = \"2-3\"\nallow = \"engine-*, io\"\n").unwrap();
        assert_eq!(two.cpus, [2, 3]);
        assert!(two.allows("engine-1") && two.allows("io") && !two.allows("cron"));
        assert_eq!(guarded("guard-cpus = 1\n").unwrap().cpus, [1]);
        let wrong = guarded("\nguard-cpus = \"x\"\n").unwrap_err().message;
        assert!(wrong.contains("line 2: guard-cpus takes CPUs"), "{wrong}");
        let wrong = guarded("guard-cpus = 1\nallow = \"[\"\n").unwrap_err().message;
        assert!(wrong.contains("line 2: allow: "), "{wrong}");
    }

    #[test]
    fn an_option_wins_over_the_file() {
        let options = WatchArgs { threshold: text("1ms"), ..args() };
        let settings =
            with_config(options, "threshold = \"2ms\"\nmax-cpu = \"0.5%\"\nkeep = \"1m\"\n").unwrap();
        assert_eq!((settings.record.min_stall_ns, settings.max_cpu), (1_000_000, Some(0.005)));
        assert_eq!(settings.record.retention.unwrap().keep_ns, 60_000_000_000);
    }

    #[test]
    fn wrong_values_are_named_by_their_option() {
        for (wrong, option) in [
            (WatchArgs { threshold: text("50"), ..args() }, "--threshold"),
            (WatchArgs { threshold: text("0us"), ..args() }, "--threshold"),
            (WatchArgs { severity: text("bad"), ..args() }, "--severity"),
            (WatchArgs { listen: text("9101"), ..args() }, "--listen"),
            (WatchArgs { keep: text("5s"), ..args() }, "--keep"),
            (WatchArgs { keep_size: text("1MiB"), ..args() }, "--keep-size"),
            (WatchArgs { on: text("fatal"), ..args() }, "--on"),
            (WatchArgs { arm_at: text("08:00"), ..args() }, "--arm-at"),
            (WatchArgs { disarm_at: text("08:00"), ..args() }, "--disarm-at"),
            (WatchArgs { arm_at: text("8"), disarm_at: text("16:30"), ..args() }, "--arm-at"),
            (WatchArgs { max_cpu: text("0.5"), ..args() }, "--max-cpu"),
            (WatchArgs { max_cpu: text("0%"), ..args() }, "--max-cpu"),
            (WatchArgs { sample_hz: text("0"), ..args() }, "--freq"),
            (WatchArgs { max_series: text("0"), ..args() }, "--max-series"),
        ] {
            let failure = Settings::read(&wrong).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.starts_with(&format!("{option}: ")), "{failure:?}");
        }
    }

    #[test]
    fn wrong_values_in_the_file_are_named_by_line_and_field() {
        for (config, place) in [
            ("keep = \"1m\"\nthreshold = \"fast\"\n", "w.toml, line 2: threshold: "),
            ("\nlisten = 9101\n", "w.toml, line 2: listen: "),
            ("max-cpu = \"much\"\n", "w.toml, line 1: max-cpu: "),
            ("[severity]\nwarning = \"1\"\ncritical = \"x\"", "w.toml, line 1: severity: "),
            ("keep = \"1m\"\ntreshold = \"1ms\"\n", "w.toml, line 2: "),
        ] {
            let failure = with_config(args(), config).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains(place), "{failure:?}");
        }
    }

    #[test]
    fn targets_of_the_file_count_where_the_command_line_names_none() {
        const FILE: &str = "pid = [7, 8]\nchildren = true\nname = \"feed*, nginx\"\n";
        let watched = |args: WatchArgs| with_config(args, FILE).unwrap().record.target;
        let names = vec!["feed*".to_string(), "nginx".to_string()];
        let of_the_file =
            GivenTargets { processes: vec![7, 8], with_children: true, names, ..GivenTargets::default() };
        assert_eq!(watched(WatchArgs::default()), Target::Given(of_the_file));
        assert_eq!(watched(args()), Target::System);
        assert_eq!(
            watched(WatchArgs { tids: vec!["9".into()], ..WatchArgs::default() }),
            Target::threads(&[9])
        );
        let combined =
            WatchArgs { pids: vec!["7".into()], cgroup: Some("/web".into()), ..WatchArgs::default() };
        let expected =
            GivenTargets { processes: vec![7], cgroup: Some("/web".into()), ..GivenTargets::default() };
        assert_eq!(watched(combined), Target::Given(expected));
        let settings = with_config(args(), "").unwrap();
        let other = with_config(WatchArgs::default(), FILE).unwrap();
        assert_eq!(settings.fixed_differences(&other), ["what is watched"]);
    }

    #[test]
    fn wrong_targets_of_the_file_are_named_by_line() {
        for (config, place) in [
            ("\npid = \"x\"\n", "w.toml, line 2: -p takes pids"),
            ("tid = [0]\npid = 7\n", "w.toml, line 1: -t takes tids"),
            ("\n\nname = [\"a\", \"[\"]\n", "w.toml, line 3: --name ["),
            ("children = true\nname = \"a\"\n", "w.toml: --children needs -p PID"),
            ("all = true\ncgroup = \"/web\"\n", "w.toml: --cgroup and -a name two targets"),
        ] {
            let failure = with_config(WatchArgs::default(), config).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains(place), "{failure:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let failure = Settings::read(&WatchArgs { config: Some("/no/such".into()), ..args() }).unwrap_err();
        assert!(failure.message.contains("/no/such") && failure.exit == Exit::Usage);
    }

    #[test]
    fn what_stays_until_a_restart_is_known() {
        let settings = with_config(args(), "").unwrap();
        let other =
            with_config(args(), "listen = \"127.0.0.1:1\"\nkeep = \"1h\"\nthreshold = \"1ms\"").unwrap();
        assert_eq!(settings.fixed_differences(&other), ["listen", "keep"]);
    }
}
