// SPDX-License-Identifier: Apache-2.0
//! The lock scenario under watch: Prometheus has its critical stalls as the program's own log has them.

use serde::Deserialize;
use wallprof_testkit::contract::Stall;
use wallprof_testkit::machine;
use wallprof_testkit::scenario::{Scenario, Truth};

use crate::prometheus::Prometheus;
use crate::watcher::Watcher;

/// Between a wait's duration by the program's clock and by the kernel's lie a system call and a hypervisor.
const EDGE_NS: u64 = 300_000;
const CRITICAL_NS: u64 = 20_000_000;

#[derive(Debug, Deserialize)]
struct Slow {
    start_ns: u64,
    end_ns: u64,
    waited: bool,
}

/// The number of critical stalls in the log. Between two of the housekeeper's sweeps lie 0.2 to 0.6 ms: on a
/// busy machine the woken engine may find the lock taken again, and then waits in two stalls, which only the
/// recording separates.
fn critical(truth: &Truth, recorded: &[Stall]) -> usize {
    let slow: Vec<Slow> = truth.all::<Slow>("slow").into_iter().filter(|slow| slow.waited).collect();
    let (mut count, mut divided) = (0, 0);
    for slow in &slow {
        let (start, end) = (truth.epoch_from_mono(slow.start_ns), truth.epoch_from_mono(slow.end_ns));
        let parts: Vec<_> = recorded.iter().filter(|stall| stall.overlaps(start, end)).collect();
        count += match parts.len() {
            0 | 1 => usize::from(end - start >= CRITICAL_NS),
            _ => parts.iter().filter(|stall| stall.duration_ns >= CRITICAL_NS).count(),
        };
        divided += usize::from(parts.len() > 1);
        assert!(
            (end - start).abs_diff(CRITICAL_NS) > EDGE_NS,
            "{slow:?} is too near to the threshold to judge"
        );
    }
    assert!(
        count > 20 && divided * 5 < slow.len(),
        "{count} critical ones, {divided} of {} divided",
        slow.len()
    );
    count
}

#[test]
fn prometheus_counts_agree_with_the_log_of_the_program() {
    let Some(_guard) = machine::reserve("prometheus_counts_agree_with_the_log_of_the_program") else {
        return;
    };
    let mut scenario = Scenario::ready("lock", &["-d", "8", "-n", "20", "-k", "100"]);
    let watcher = Watcher::start(&["-p", &scenario.pid(), "--severity", "warning=1ms,critical=20ms"]);
    let Some(prometheus) = Prometheus::scraping(watcher.address) else {
        return wallprof_testkit::skip(
            "prometheus_counts_agree_with_the_log_of_the_program",
            "prometheus is not installed",
        );
    };
    prometheus.wait_for("wallprof_armed", 1.0);
    let truth = scenario.run();
    let engine = r#"process="lock",thread="engine",reason="lock""#;
    // A second of the watcher ends after the scenario, and a scrape shows it after that.
    for _ in 0..2 {
        let seconds = prometheus.value("wallprof_self_cpu_seconds_total");
        prometheus.wait_for("wallprof_self_cpu_seconds_total", seconds + 1e-9);
    }
    let recorded = watcher.stalls(&["--thread", "engine", "--reason", "lock"]);
    let counted = prometheus.value(&format!(r#"sum(wallprof_stalls_total{{{engine},severity="critical"}})"#));
    assert_eq!(counted as usize, critical(&truth, &recorded));

    exemplars_open(&watcher, &prometheus, engine);
    sums_agree(&watcher, &prometheus, engine);
}

/// Each exemplar has the id of a stall in the flight recording, of that thread and length.
fn exemplars_open(watcher: &Watcher, prometheus: &Prometheus, engine: &str) {
    let exemplars = prometheus.exemplars(&format!("wallprof_offcpu_seconds_bucket{{{engine}}}"));
    assert!(!exemplars.is_empty());
    for (labels, seconds) in exemplars {
        let id = labels["stall_id"].as_str().expect("an id");
        let stalls = watcher.stalls(&["--id", id]);
        assert_eq!((stalls.len(), stalls[0].comm.as_str()), (1, "engine"), "{id}");
        assert!((stalls[0].duration_ns as f64 / 1e9 - seconds).abs() < 1e-9, "{id}: {seconds} s");
    }
}

/// The histogram's sum is exact. Waits shorter than the threshold are in it and not in the recording, so it
/// is many times that.
fn sums_agree(watcher: &Watcher, prometheus: &Prometheus, engine: &str) {
    let recorded: Vec<_> = watcher
        .stalls(&["--thread", "engine", "--reason", "lock"])
        .into_iter()
        .map(|stall| stall.duration_ns)
        .collect();
    let recorded_s = recorded.iter().sum::<u64>() as f64 / 1e9;
    let value = |what: &str| prometheus.value(&format!("sum(wallprof_{what}{{{engine}}})"));
    let (sum_s, count) = (value("offcpu_seconds_sum"), value("offcpu_seconds_count"));
    let short = count - recorded.len() as f64;
    assert!(short >= 0.0, "{count} in the histogram, {} recorded", recorded.len());
    let may_differ_s = short * 50e-6 + 1e-6 * count;
    assert!((sum_s - recorded_s).abs() <= may_differ_s, "{sum_s} s and {recorded_s} s, {short} short ones");
    assert!((value("stall_seconds_total") - recorded_s).abs() < 1e-6, "{recorded_s} s of stalls");
}
