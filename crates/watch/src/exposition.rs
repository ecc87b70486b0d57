// SPDX-License-Identifier: Apache-2.0
//! The metrics as text, rendered at most once for each change, independent of the number of clients.
//!
//! Owns the names and the help of the metrics, the labels of each line, and the time that a text stands for.

use std::sync::{Arc, Mutex, PoisonError};

use wallprof_model::MonoNs;

use crate::durations::{Durations, EDGES, Exemplar, FIRST_EDGE, Shown};
use crate::metrics::Metrics;
use crate::openmetrics::{self, Bucket, Kind, Text};
use crate::series::{Container, Family, Labels};

/// The names of all metrics, as Prometheus queries them (histograms without their suffixes).
pub const NAMES: [&str; 20] = [
    "wallprof_stalls_total",
    "wallprof_stall_seconds_total",
    "wallprof_offcpu_seconds",
    "wallprof_runqueue_seconds",
    "wallprof_fault_seconds",
    "wallprof_span_seconds",
    "wallprof_spans_over_budget_total",
    "wallprof_oncpu_seconds_total",
    "wallprof_longest_stall_seconds",
    "wallprof_udp_drops_total",
    "wallprof_guard_intrusions_total",
    "wallprof_lost_total",
    "wallprof_series_limit_hits_total",
    "wallprof_self_cpu_seconds_total",
    "wallprof_probe_seconds_total",
    "wallprof_self_delay_seconds_total",
    "wallprof_armed",
    "wallprof_sample_rate_hertz",
    "wallprof_stack_threshold_seconds",
    "wallprof_snapshots_total",
];

/// The text of one generation of metrics, shared by all clients.
pub struct Exposition {
    metrics: Arc<Mutex<Metrics>>,
    text: Mutex<Rendered>,
}

#[derive(Default)]
struct Rendered {
    generation: Option<u64>,
    text: Arc<[u8]>,
}

impl Exposition {
    pub fn new(metrics: Arc<Mutex<Metrics>>) -> Self {
        Exposition { metrics, text: Mutex::default() }
    }

    /// The text as of the last complete second. Open stalls last until `now`, the time of the request. The
    /// first request in a second starts to measure the longest stalls anew.
    pub fn text(&self, now: MonoNs) -> Arc<[u8]> {
        let mut rendered = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        let mut metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = Some(metrics.generation());
        if rendered.generation != generation {
            metrics.note_open(now);
            // Most texts are as long as the one before.
            let text = render(&metrics, rendered.text.len() + 4096);
            metrics.restart_longest();
            *rendered = Rendered { generation, text: Arc::from(text.into_bytes()) };
        }
        Arc::clone(&rendered.text)
    }
}

fn render(metrics: &Metrics, capacity: usize) -> String {
    let mut text = Text::with_capacity(capacity);
    write_stalls(metrics, &mut text);
    write_durations(metrics, &mut text);
    write_threads(metrics, &mut text);
    write_losses(metrics, &mut text);
    write_own(metrics, &mut text);
    text.finish()
}

fn write_stalls(metrics: &Metrics, text: &mut Text) {
    let help = "Involuntary waits and page faults that were too long";
    text.family("wallprof_stalls", Kind::Counter, help);
    for (labels, sum) in metrics.stalls.iter() {
        text.count("wallprof_stalls_total", &pairs(labels), sum.count);
    }
    let help = "How long the stalls lasted, from switch-out to switch-in";
    text.family("wallprof_stall_seconds", Kind::Counter, help);
    for (labels, sum) in metrics.stalls.iter() {
        text.value("wallprof_stall_seconds_total", &pairs(labels), seconds(sum.total_ns));
    }
}

fn write_durations(metrics: &Metrics, text: &mut Text) {
    let families: [(&str, &str, &Family<Durations>); 4] = [
        ("wallprof_offcpu_seconds", "Off-CPU intervals from switch-out to switch-in", &metrics.off_cpu),
        ("wallprof_runqueue_seconds", "From wakeup or preemption to switch-in", &metrics.run_queue),
        ("wallprof_fault_seconds", "Page faults from entry to completion", &metrics.fault),
        ("wallprof_span_seconds", "Operations of programs: busy periods and marked spans", &metrics.spans),
    ];
    for (name, help, all) in families {
        text.family(name, Kind::Histogram, help);
        for (labels, durations) in all.iter() {
            write_histogram(text, name, labels, durations);
        }
    }
    text.family("wallprof_spans_over_budget", Kind::Counter, "Spans that lasted longer than their --budget");
    for (labels, count) in metrics.over_budget.iter() {
        text.count("wallprof_spans_over_budget_total", &pairs(labels), *count);
    }
}

fn write_histogram(text: &mut Text, name: &str, labels: &Labels, durations: &Durations) {
    let ids: Vec<_> = durations.exemplars.iter().map(|(edge, exemplar)| (*edge, ids_of(exemplar))).collect();
    let shown: Vec<(_, Vec<_>)> = ids
        .iter()
        .map(|(edge, ids)| (*edge, ids.iter().map(|(name, id)| (*name, id.as_str())).collect()))
        .collect();
    let buckets = durations.counts.iter().enumerate().map(|(edge, count)| {
        let labels = shown.iter().find(|(at, _)| *at == edge).map(|(_, labels)| labels.as_slice());
        let exemplar = durations.exemplars.get(&edge).zip(labels);
        Bucket {
            upper: upper_seconds(edge),
            count: *count,
            exemplar: exemplar.map(|(exemplar, labels)| shown_exemplar(exemplar, labels)),
        }
    });
    text.histogram(name, &pairs(labels), seconds(durations.total_ns), buckets);
}

/// The labels of an exemplar. With a trace they take at most 91 of the 128 characters that a reader takes.
fn ids_of(exemplar: &Exemplar) -> Vec<(&'static str, String)> {
    match exemplar.of {
        Shown::Stall(id, trace) => {
            let ids = trace.map(|ids| [("trace_id", ids.trace_id()), ("span_id", ids.span_id())]);
            std::iter::once(("stall_id", id.to_string())).chain(ids.into_iter().flatten()).collect()
        }
        Shown::Thread(tid) => vec![("tid", tid.to_string())],
    }
}

fn shown_exemplar<'a>(exemplar: &Exemplar, labels: openmetrics::Labels<'a>) -> openmetrics::Exemplar<'a> {
    openmetrics::Exemplar { labels, value: seconds(exemplar.ns), at: seconds(exemplar.at.0) }
}

fn write_threads(metrics: &Metrics, text: &mut Text) {
    text.family("wallprof_oncpu_seconds", Kind::Counter, "Time on a CPU");
    for (labels, ns) in metrics.on_cpu.iter() {
        text.value("wallprof_oncpu_seconds_total", &pairs(labels), seconds(*ns));
    }
    let help =
        "The longest stall since the last scrape; a stall open for more than a second counts while it lasts";
    text.family("wallprof_longest_stall_seconds", Kind::Gauge, help);
    for (labels, ns) in metrics.longest.iter() {
        text.value("wallprof_longest_stall_seconds", &pairs(labels), seconds(*ns));
    }
}

fn write_losses(metrics: &Metrics, text: &mut Text) {
    text.family("wallprof_udp_drops", Kind::Counter, "Packets dropped at UDP sockets of a process");
    for (labels, count) in metrics.udp_drops.iter() {
        let address = |(name, value)| (if name == "kind" { "address" } else { name }, value);
        let labels: Vec<_> = pairs(labels).into_iter().map(address).collect();
        text.count("wallprof_udp_drops_total", &labels, *count);
    }
    let help = "Runs of threads that are not allowed on guarded CPUs, and interrupts there";
    text.family("wallprof_guard_intrusions", Kind::Counter, help);
    for ((cpu, kind, thread), count) in &metrics.intrusions {
        let cpu = cpu.to_string();
        let labels = [("cpu", cpu.as_str()), ("kind", kind), ("thread", thread)];
        text.count("wallprof_guard_intrusions_total", &labels, *count);
    }
    text.family(
        "wallprof_lost",
        Kind::Counter,
        "Losses: events that could not be measured or recorded, by reason",
    );
    for (reason, count) in &metrics.lost {
        text.count("wallprof_lost_total", &[("reason", reason)], *count);
    }
    let help = "Updates counted under _others because the limit on series was reached";
    text.family("wallprof_series_limit_hits", Kind::Counter, help);
    text.count("wallprof_series_limit_hits_total", &[], metrics.pool.limit_hits());
}

fn write_own(metrics: &Metrics, text: &mut Text) {
    text.family("wallprof_self_cpu_seconds", Kind::Counter, "CPU time of the watcher's own process");
    text.value("wallprof_self_cpu_seconds_total", &[], seconds(metrics.cost.process_cpu_ns));
    text.family(
        "wallprof_probe_seconds",
        Kind::Counter,
        "Time in the BPF programs, estimated from one run in 61",
    );
    text.value("wallprof_probe_seconds_total", &[], seconds(metrics.cost.probe_ns));
    let help = "Time that threads waited for a CPU on which the watcher ran";
    text.family("wallprof_self_delay_seconds", Kind::Counter, help);
    text.value("wallprof_self_delay_seconds_total", &[], seconds(metrics.cost.behind_ns));
    text.family("wallprof_armed", Kind::Gauge, "1 while measuring, 0 while disarmed");
    text.count("wallprof_armed", &[], u64::from(metrics.armed));
    text.family("wallprof_sample_rate_hertz", Kind::Gauge, "Stack samples a second on each CPU");
    text.value("wallprof_sample_rate_hertz", &[], metrics.sample_hz);
    text.family(
        "wallprof_stack_threshold_seconds",
        Kind::Gauge,
        "Waits of at least this duration get a stack each",
    );
    text.value("wallprof_stack_threshold_seconds", &[], seconds(metrics.stack_threshold_ns));
    text.family("wallprof_snapshots", Kind::Counter, "Snapshots written of the flight recording");
    text.count("wallprof_snapshots_total", &[], metrics.snapshots);
}

fn pairs(labels: &Labels) -> Vec<(&str, &str)> {
    let Labels { owner, reason, severity, meaning, kind } = labels;
    let second = kind.as_deref().map_or(("thread", owner.thread.as_str()), |kind| ("kind", kind));
    let mut pairs = vec![("process", owner.process.as_str()), second];
    match &owner.container {
        None => {}
        Some(Container::Short(name)) => pairs.push(("container", name)),
        // The names of the kubelet's own metrics, so that both can be joined.
        Some(Container::InPod(of)) => {
            pairs.extend([("namespace", &*of.namespace), ("pod", &of.pod), ("container", &of.container)]);
        }
    }
    pairs.extend(reason.map(|reason| ("reason", reason)));
    pairs.extend(severity.as_deref().map(|severity| ("severity", severity)));
    // Every metric of waits has the label, so that a sum over it finds all.
    pairs.extend(reason.map(|_| ("meaning", meaning.as_deref().unwrap_or(""))));
    pairs
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn upper_seconds(edge: usize) -> f64 {
    match edge < EDGES {
        true => seconds(1 << (FIRST_EDGE as usize + edge)),
        false => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use wallprof_model::profile::KeptStall;
    use wallprof_model::{Event, Reason, StallKind, StallReason, ThreadInfo, ThreadKey, TraceIds};

    use super::*;
    use crate::metrics::tests::{
        drops, info_in, intrusion, meaning, metrics, off_cpu, stall, stall_event, thread_in,
    };
    use crate::severity::Severities;

    fn text_of(exposition: &Exposition, now: u64) -> String {
        String::from_utf8(exposition.text(MonoNs(now)).to_vec()).expect("UTF-8")
    }

    fn exposition(change: impl FnOnce(&mut Metrics)) -> (Arc<Mutex<Metrics>>, Exposition) {
        let mut metrics = metrics();
        change(&mut metrics);
        let metrics = Arc::new(Mutex::new(metrics));
        (Arc::clone(&metrics), Exposition::new(metrics))
    }

    fn lines<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        text.lines().filter(|line| line.starts_with(name)).collect()
    }

    #[test]
    fn counters_and_histograms_carry_names_and_reasons() {
        let (_, exposition) = exposition(|metrics| {
            metrics.take(&off_cpu(1, StallReason::Blocked(Reason::Lock), 2_000_000));
            metrics.take(&stall_event(stall(1, 7, 2_000_000)));
            let (thread, kind) = (ThreadKey(1), StallKind::OffCpu);
            let trace = TraceIds::from_bytes([0xab; 16], [0xcd; 8]);
            let kept = KeptStall { id: 42, thread, kind, start: MonoNs(7), end: MonoNs(2_000_007), trace };
            metrics.add_exemplars(&[kept], |_| wallprof_model::EpochNs(1_500_000_000));
        });
        let text = text_of(&exposition, 0);
        let labels = r#"{process="server",thread="engine",reason="lock",severity="critical",meaning=""}"#;
        assert_eq!(lines(&text, "wallprof_stalls_total"), [format!("wallprof_stalls_total{labels} 1")]);
        let sums = lines(&text, "wallprof_stall_seconds_total");
        assert_eq!(sums, [format!("wallprof_stall_seconds_total{labels} 0.002")]);
        let buckets = lines(&text, "wallprof_offcpu_seconds_bucket");
        assert_eq!(buckets.len(), EDGES + 1);
        let with_exemplar: Vec<_> = buckets.iter().filter(|line| line.contains(" # ")).collect();
        assert_eq!(with_exemplar.len(), 1);
        assert!(with_exemplar[0].contains(r#"le="0.002097152""#), "{with_exemplar:?}");
        let (trace, span) = ("ab".repeat(16), "cd".repeat(8));
        let shown = format!(r#" 1 # {{stall_id="42",trace_id="{trace}",span_id="{span}"}} 0.002 1.5"#);
        assert!(with_exemplar[0].ends_with(&shown), "{with_exemplar:?}");
        assert!(buckets.last().expect("buckets").contains(r#"le="+Inf""#));
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn containers_are_a_label_where_that_is_asked_for() {
        let text = |labels: bool| {
            let mut metrics = Metrics::new(Severities::default(), 1_000).with_containers(labels);
            let id = "0123456789ab".repeat(5) + "cdef";
            for (key, cgroup) in [(1, format!("/system.slice/docker-{id}.scope")), (2, "/user.slice".into())]
            {
                metrics.take(&thread_in(key, "server", "engine", &cgroup));
                metrics.take(&stall_event(stall(key, 7, 2_000_000)));
            }
            text_of(&Exposition::new(Arc::new(Mutex::new(metrics))), 0)
        };
        let rest = r#"reason="lock",severity="critical",meaning=""}"#;
        let name = r#"wallprof_stalls_total{process="server",thread="engine","#;
        let (with, without) = (text(true), text(false));
        assert_eq!(lines(&without, "wallprof_stalls_total"), [format!("{name}{rest} 2")]);
        let series = [format!("{name}{rest} 1"), format!(r#"{name}container="0123456789ab",{rest} 1"#)];
        assert_eq!(lines(&with, "wallprof_stalls_total"), series);
        assert!(
            with.contains(r#"wallprof_longest_stall_seconds{process="server",thread="engine",container="#)
        );
    }

    #[test]
    fn containers_of_pods_have_the_names_of_kubernetes() {
        let id = "0123456789abcdef".repeat(4);
        let cgroup = format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope");
        let mut metrics = Metrics::new(Severities::default(), 1_000).with_containers(true);
        metrics.take(&thread_in(1, "server", "engine", &cgroup));
        metrics.take(&stall_event(stall(1, 7, 2_000_000)));
        // The kubelet makes its file when the container runs already.
        let pod = "shop/web-1/nginx".parse().map(Arc::new).ok();
        metrics.take(&Event::Thread(ThreadInfo { pod, ..info_in(1, "server", "engine", &cgroup) }));
        metrics.take(&stall_event(stall(1, 8, 2_000_000)));
        let text = text_of(&Exposition::new(Arc::new(Mutex::new(metrics))), 0);
        let name = r#"wallprof_stalls_total{process="server",thread="engine","#;
        let rest = r#"reason="lock",severity="critical",meaning=""}"#;
        let series = [
            format!(r#"{name}container="0123456789ab",{rest} 1"#),
            format!(r#"{name}namespace="shop",pod="web-1",container="nginx",{rest} 1"#),
        ];
        assert_eq!(lines(&text, "wallprof_stalls_total"), series);
    }

    #[test]
    fn wait_for_a_lock_that_its_wakers_tell_says_so() {
        use wallprof_model::event::Stall;
        let wait = |meaning| Stall {
            reason: StallReason::Blocked(Reason::Wait),
            voluntary: true,
            meaning,
            ..stall(1, 7, 2_000_000)
        };
        let (_, exposition) = exposition(|metrics| {
            metrics.take(&stall_event(wait(Some(meaning("lock", false)))));
            metrics.take(&stall_event(wait(Some(meaning("clients", true)))));
            metrics.take(&stall_event(wait(None)));
        });
        let text = text_of(&exposition, 0);
        let labels = r#"{process="server",thread="engine",reason="wait",severity="critical",meaning="lock"}"#;
        assert_eq!(lines(&text, "wallprof_stalls_total"), [format!("wallprof_stalls_total{labels} 1")]);
    }

    #[test]
    fn every_promised_name_is_there() {
        let (_, exposition) = exposition(|metrics| {
            metrics.take(&stall_event(stall(1, 7, 2_000_000)));
            metrics.take(&intrusion("cron", false));
            metrics.count_loss("stacks_full", 1);
        });
        let text = text_of(&exposition, 0);
        for name in NAMES {
            let family = name.strip_suffix("_total").unwrap_or(name);
            assert!(text.contains(&format!("# TYPE {family} ")), "{name}");
        }
    }

    #[test]
    fn dropped_packets_have_the_address_of_their_socket() {
        let (_, exposition) = exposition(|metrics| {
            drops(7, 1, &[40.0, 52.0]).iter().for_each(|event| metrics.take(event));
        });
        let expected = r#"wallprof_udp_drops_total{process="server",address="10.0.0.1:5000"} 12"#;
        assert_eq!(lines(&text_of(&exposition, 0), "wallprof_udp_drops_total"), [expected]);
    }

    #[test]
    fn one_generation_is_rendered_once_and_restarts_the_longest_stall() {
        let (metrics, exposition) = exposition(|metrics| {
            metrics.take(&stall_event(stall(1, 7, 2_000_000)));
        });
        let first = exposition.text(MonoNs(0));
        assert!(Arc::ptr_eq(&first, &exposition.text(MonoNs(0))));
        let longest = |text: &str| lines(text, "wallprof_longest_stall_seconds").len();
        assert_eq!(longest(std::str::from_utf8(&first).expect("UTF-8")), 1);
        metrics.lock().expect("unpoisoned").end_seconds(1);
        assert_eq!(longest(&text_of(&exposition, 0)), 0);
    }

    #[test]
    fn open_stall_shows_its_lateness_so_far() {
        let (_, exposition) = exposition(|metrics| {
            let open = wallprof_model::event::Stall { open: true, ..stall(1, 1_000_000_000, 1_000_000_000) };
            metrics.take(&Event::Stall(Box::new(open)));
        });
        let text = text_of(&exposition, 6_000_000_000);
        let expected = r#"wallprof_longest_stall_seconds{process="server",thread="engine"} 5.0"#;
        assert_eq!(lines(&text, "wallprof_longest_stall_seconds"), [expected]);
    }
}
