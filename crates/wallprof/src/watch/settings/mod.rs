// SPDX-License-Identifier: Apache-2.0
//! The settings of a watcher: options and configuration, merged and checked.
//!
//! An option on the command line overrides the same one in the file. An error names the option, or the file
//! with line and field. The only inputs from outside are that file and the folders of a service in the
//! environment.

mod file;
mod folders;
mod given;
mod targets;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use wallprof_recording::Retention;
use wallprof_watch::{Config, Entry, HostNames, Hours, Severities};

use crate::args::{RecordArgs, WatchArgs};
use crate::failure::Failure;
use crate::record::RecordOptions;
use crate::watch::tables::TableSettings;
use folders::{default_recording, default_socket, folder_of};
use given::Given;

/// The folder for sockets of services.
pub const RUN_FOLDER: &str = "/run";
pub const SOCKET_NAME: &str = "wallprof.sock";
/// The settings of a watcher.
#[derive(Clone, Debug)]
pub struct Settings {
    pub record: RecordOptions,
    pub severities: Severities,
    pub listen: SocketAddr,
    pub socket: PathBuf,
    pub hosts: HostNames,
    /// The lowest severity of a stall that triggers a snapshot.
    pub on: Option<String>,
    /// The folder for snapshots.
    pub snapshots: PathBuf,
    pub tables: Option<TableSettings>,
    pub hours: Option<Hours>,
    /// Share of one CPU.
    pub max_cpu: Option<f64>,
    pub max_series: usize,
    pub label_containers: bool,
}

impl Settings {
    pub fn read(args: &WatchArgs) -> Result<Self, Failure> {
        let config = args.config.as_deref().map(file::read).transpose()?.unwrap_or_default();
        Self::from_both(args, &config)
    }

    fn from_both(args: &WatchArgs, config: &Config) -> Result<Self, Failure> {
        let file = args.config.as_deref().unwrap_or(Path::new(""));
        let given = |name: &str, option: &Option<String>, entry: &Option<Entry>, default: &str| {
            Given::find(file, name, option, entry)
                .unwrap_or_else(|| Given { text: default.into(), from: name.into() })
        };
        let optional = |name: &str, option: &Option<String>, entry: &Option<Entry>| {
            Given::find(file, name, option, entry)
        };
        let severities =
            given("--severity", &args.severity, &config.severity, "warning=100us,critical=500us");
        let severities = Severities::parse(&severities.text).map_err(|error| severities.wrong(error))?;
        let listen = given("--listen", &args.listen, &config.listen, "127.0.0.1:9101");
        let output = given("--output", &args.output, &config.output, &default_recording());
        let output = PathBuf::from(output.text);
        let snapshots = optional("--snapshot", &args.snapshot, &config.snapshot);
        let retention = given::retention(
            &given("--keep", &args.keep, &config.keep, "10m"),
            &given("--keep-size", &args.keep_size, &config.keep_size, "512MiB"),
        )?;
        let threshold = given("--threshold", &args.threshold, &config.threshold, "50us");
        let sample_hz = given("--freq", &args.sample_hz, &config.freq, "49");
        let guarded = given::guarded(
            optional("--guard-cpus", &args.guard_cpus, &config.guard_cpus),
            optional("--allow", &args.allow, &config.allow),
        )?;
        let recorder_cpus =
            given::cpus(optional("--recorder-cpus", &args.recorder_cpus, &config.recorder_cpus))?;
        let target = targets::read(args, config, file)?;
        let labels = given::labels(&args.labels, config.label.as_ref(), file)?;
        let budgets = given::budgets(&args.budgets, config.budget.as_ref(), file)?;
        let spans = given::spans(&args.spans, &config.span, file)?;
        let record = RecordArgs { output: output.clone(), meaning: args.meaning.clone(), ..target };
        let record = record_options(record, &threshold, &sample_hz, retention)?;
        Ok(Settings {
            record: RecordOptions { guarded, recorder_cpus, labels, budgets, spans, ..record },
            on: given::severity_of_snapshots(optional("--on", &args.on, &config.on), &severities)?,
            severities,
            listen: listen.text.parse().map_err(|_| {
                listen.wrong(format!("`{}` is not an address with a port: write 127.0.0.1:9101", listen.text))
            })?,
            socket: given("--socket", &args.socket, &config.socket, &default_socket()).text.into(),
            hosts: given::host_names(optional("--host-names", &args.host_names, &config.host_names)),
            snapshots: snapshots.map_or_else(|| folder_of(&output), |given| PathBuf::from(given.text)),
            tables: given::tables(
                optional("--parquet", &args.parquet, &config.parquet),
                &given("--parquet-size", &args.parquet_size, &config.parquet_size, "1GiB"),
            )?,
            hours: given::hours(
                optional("--arm-at", &args.arm_at, &config.arm_at),
                optional("--disarm-at", &args.disarm_at, &config.disarm_at),
            )?,
            max_cpu: optional("--max-cpu", &args.max_cpu, &config.max_cpu)
                .map(given::share_of_cpu)
                .transpose()?,
            max_series: given::max_series(&given(
                "--max-series",
                &args.max_series,
                &config.max_series,
                "5000",
            ))?,
            label_containers: args.label_containers || config.label_containers,
        })
    }

    /// The settings that differ in `new` and cannot change without a restart.
    pub fn fixed_differences(&self, new: &Settings) -> Vec<&'static str> {
        let differences = [
            (self.record.target != new.record.target, "what is watched"),
            (self.listen != new.listen, "listen"),
            (self.socket != new.socket, "socket"),
            (self.hosts != new.hosts, "host-names"),
            (self.record.output != new.record.output, "output"),
            (self.record.retention != new.record.retention, "keep"),
            (self.tables != new.tables, "parquet"),
            (self.record.sample_hz != new.record.sample_hz, "freq"),
            (self.record.labels != new.record.labels, "label"),
            (self.record.budgets != new.record.budgets, "budget"),
            (self.record.spans != new.record.spans, "span"),
            (self.record.guarded != new.record.guarded, "guard-cpus"),
            (self.record.recorder_cpus != new.record.recorder_cpus, "recorder-cpus"),
            (self.max_series != new.max_series, "max-series"),
            (self.label_containers != new.label_containers, "label-containers"),
        ];
        differences.into_iter().filter(|(differs, _)| *differs).map(|(_, name)| name).collect()
    }
}

fn record_options(
    target: RecordArgs,
    threshold: &Given,
    sample_hz: &Given,
    retention: Retention,
) -> Result<RecordOptions, Failure> {
    let min_stall_ns = given::duration_ns(threshold)?;
    match sample_hz.text.parse::<u32>() {
        Ok(_) => {}
        Err(_) => {
            return Err(sample_hz.wrong(format!("`{}` is not a number of samples a second", sample_hz.text)));
        }
    }
    let record =
        RecordArgs { sample_hz: sample_hz.text.clone(), min_stall: format!("{min_stall_ns}ns"), ..target };
    Ok(RecordOptions { retention: Some(retention), ..RecordOptions::from_args(record)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;
    use crate::record::{GivenTargets, Target};

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
    fn defaults_are_as_documented() {
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
    fn guarded_cpus_and_allowed_names_are_read() {
        let guarded = |config: &str| with_config(args(), config).map(|settings| settings.record.guarded);
        let two = guarded("guard-cpus = \"2-3\"\nallow = \"engine-*, io\"\n").unwrap();
        assert_eq!(two.cpus, [2, 3]);
        assert!(two.allows("engine-1") && two.allows("io") && !two.allows("cron"));
        assert_eq!(guarded("guard-cpus = 1\n").unwrap().cpus, [1]);
        let wrong = guarded("\nguard-cpus = \"x\"\n").unwrap_err().message;
        assert!(wrong.contains("line 2: guard-cpus takes CPUs"), "{wrong}");
        let recorder =
            |config: &str| with_config(args(), config).map(|settings| settings.record.recorder_cpus);
        assert_eq!(recorder("recorder-cpus = \"0-1\"\n").unwrap(), Some(vec![0, 1]));
        assert_eq!(recorder("").unwrap(), None);
        let wrong = recorder("recorder-cpus = \"x\"\n").unwrap_err().message;
        assert!(wrong.contains("line 1: recorder-cpus takes CPUs"), "{wrong}");
        let wrong = guarded("guard-cpus = 1\nallow = \"[\"\n").unwrap_err().message;
        assert!(wrong.contains("line 2: allow: "), "{wrong}");
    }

    #[test]
    fn option_overrides_the_file() {
        let options = WatchArgs { threshold: text("1ms"), ..args() };
        let settings =
            with_config(options, "threshold = \"2ms\"\nmax-cpu = \"0.5%\"\nkeep = \"1m\"\n").unwrap();
        assert_eq!((settings.record.min_stall_ns, settings.max_cpu), (1_000_000, Some(0.005)));
        assert_eq!(settings.record.retention.unwrap().keep_ns, 60_000_000_000);
    }

    #[test]
    fn wrong_value_is_named_by_its_option() {
        for (wrong, option) in [
            (WatchArgs { threshold: text("50"), ..args() }, "--threshold"),
            (WatchArgs { threshold: text("0us"), ..args() }, "--threshold"),
            (WatchArgs { severity: text("bad"), ..args() }, "--severity"),
            (WatchArgs { listen: text("9101"), ..args() }, "--listen"),
            (WatchArgs { keep: text("5s"), ..args() }, "--keep"),
            (WatchArgs { keep_size: text("1MiB"), ..args() }, "--keep-size"),
            (WatchArgs { parquet_size: text("1MiB"), ..args() }, "--parquet-size"),
            (WatchArgs { on: text("fatal"), ..args() }, "--on"),
            (WatchArgs { arm_at: text("08:00"), ..args() }, "--arm-at"),
            (WatchArgs { disarm_at: text("08:00"), ..args() }, "--disarm-at"),
            (WatchArgs { arm_at: text("8"), disarm_at: text("16:30"), ..args() }, "--arm-at"),
            (WatchArgs { max_cpu: text("0.5"), ..args() }, "--max-cpu"),
            (WatchArgs { max_cpu: text("0%"), ..args() }, "--max-cpu"),
            (WatchArgs { sample_hz: text("-1"), ..args() }, "--freq"),
            (WatchArgs { max_series: text("0"), ..args() }, "--max-series"),
        ] {
            let failure = Settings::read(&wrong).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.starts_with(&format!("{option}: ")), "{failure:?}");
        }
    }

    #[test]
    fn wrong_value_in_the_file_is_named_by_line_and_field() {
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
    fn targets_of_the_file_are_used_if_the_command_line_has_none() {
        const FILE: &str = "pid = [7, 8]\nchildren = true\nname = \"feed*, nginx\"\n";
        let target = |args: WatchArgs| with_config(args, FILE).unwrap().record.target;
        let names = vec!["feed*".to_string(), "nginx".to_string()];
        let of_the_file =
            GivenTargets { processes: vec![7, 8], with_children: true, names, ..GivenTargets::default() };
        assert_eq!(target(WatchArgs::default()), Target::Given(of_the_file));
        assert_eq!(target(args()), Target::System);
        assert_eq!(
            target(WatchArgs { tids: vec!["9".into()], ..WatchArgs::default() }),
            Target::threads(&[9])
        );
        let combined =
            WatchArgs { pids: vec!["7".into()], cgroup: Some("/web".into()), ..WatchArgs::default() };
        let expected =
            GivenTargets { processes: vec![7], cgroup: Some("/web".into()), ..GivenTargets::default() };
        assert_eq!(target(combined), Target::Given(expected));
        let settings = with_config(args(), "").unwrap();
        let other = with_config(WatchArgs::default(), FILE).unwrap();
        assert_eq!(settings.fixed_differences(&other), ["what is watched"]);
    }

    #[test]
    fn file_without_a_target_is_named() {
        let failure = with_config(WatchArgs::default(), "# all = true\nkeep = \"1m\"\n").unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains("w.toml has no target: write `all = true` into it"), "{failure:?}");
        let failure = Settings::read(&WatchArgs::default()).unwrap_err();
        assert!(failure.message.contains("everything (-a), or a file with targets"), "{failure:?}");
    }

    #[test]
    fn wrong_target_of_the_file_is_named_by_line() {
        for (config, place) in [
            ("\npid = \"x\"\n", "w.toml, line 2: -p takes pids"),
            ("tid = [0]\npid = 7\n", "w.toml, line 1: -t takes tids"),
            ("\n\nname = [\"a\", \"[\"]\n", "w.toml, line 3: --name ["),
            ("children = true\nname = \"a\"\n", "w.toml: --children needs -p PID"),
            ("all = true\ncgroup = \"/web\"\n", "w.toml: --cgroup and -a exclude each other"),
        ] {
            let failure = with_config(WatchArgs::default(), config).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains(place), "{failure:?}");
        }
    }

    #[test]
    fn labels_of_the_command_line_override_those_of_the_file() {
        let labels = |args, config| with_config(args, config).map(|settings| settings.record.labels);
        let of_file = labels(args(), "[label]\nversion = \"1.4\"\narm = \"b\"\n").unwrap();
        assert_eq!((of_file.len(), of_file["version"].as_str()), (2, "1.4"));
        assert_eq!(labels(args(), "label = \"version=1.4, arm=b\"\n").unwrap(), of_file);
        let given = WatchArgs { labels: vec!["arm=c".into()], ..args() };
        assert_eq!(labels(given, "label = \"version=1.4\"\n").unwrap()["arm"], "c");
        let wrong = labels(args(), "\nlabel = \"version\"\n").unwrap_err().message;
        assert!(wrong.contains("w.toml, line 2: label: `version` is not KEY=VALUE"), "{wrong}");
    }

    #[test]
    fn missing_file_is_named() {
        let failure = Settings::read(&WatchArgs { config: Some("/no/such".into()), ..args() }).unwrap_err();
        assert!(failure.message.contains("/no/such") && failure.exit == Exit::Usage);
    }

    #[test]
    fn settings_that_need_a_restart_are_listed() {
        let settings = with_config(args(), "").unwrap();
        let other =
            with_config(args(), "listen = \"127.0.0.1:1\"\nkeep = \"1h\"\nthreshold = \"1ms\"").unwrap();
        assert_eq!(settings.fixed_differences(&other), ["listen", "keep"]);
    }
}
