// SPDX-License-Identifier: Apache-2.0
//! A thread that oversleeps by little beside threads that wait for a lock as long: metrics count by lateness.

use wallprof_testkit::contract::Stall;
use wallprof_testkit::machine;
use wallprof_testkit::scenario::Scenario;

use crate::http;
use crate::watcher::{Watcher, value};

/// The default severities, least lateness last.
const SEVERITIES: [(&str, u64); 3] = [("critical", 500_000), ("warning", 100_000), ("info", 0)];

fn severity(stall: &Stall) -> &'static str {
    SEVERITIES.iter().find(|(_, least_ns)| stall.late_ns >= *least_ns).map_or("", |(name, _)| name)
}

/// Waits until the watcher has counted the seconds up to now.
fn settle(watcher: &Watcher) {
    for _ in 0..2 {
        let cost = |text: &str| value(text, "wallprof_self_cpu_seconds_total", &[]);
        let before = cost(&watcher.metrics());
        watcher.metrics_until(|text| cost(text) > before);
    }
}

#[test]
fn metrics_and_page_go_by_lateness() {
    let Some(_guard) = machine::reserve("metrics_and_page_go_by_lateness") else { return };
    let mut scenario = Scenario::ready("timeouts", &["-d", "3"]);
    let watcher = Watcher::start(&["-p", &scenario.pid(), "--threshold", "50us"]);
    scenario.run();
    settle(&watcher);
    let text = watcher.metrics();
    for (thread, reason) in [("ticker", "sleep"), ("waiter", "lock"), ("pi-waiter", "lock")] {
        let stalls = watcher.stalls(&["--thread", thread, "--reason", reason]);
        let stalls: Vec<Stall> = stalls.into_iter().filter(|stall| !stall.voluntary).collect();
        let labels =
            [r#"process="timeouts""#, &format!("thread=\"{thread}\""), &format!("reason=\"{reason}\"")];
        let seconds = value(&text, "wallprof_stall_seconds_total", &labels);
        let late_s = stalls.iter().map(|stall| stall.late_ns).sum::<u64>() as f64 / 1e9;
        assert!((seconds - late_s).abs() < 1e-6, "{thread}: {seconds} s, {late_s} s recorded");
        for (name, _) in SEVERITIES {
            let labels = [labels[0], labels[1], labels[2], &format!("severity=\"{name}\"")];
            let counted = value(&text, "wallprof_stalls_total", &labels);
            let recorded = stalls.iter().filter(|stall| severity(stall) == name).count();
            assert_eq!(counted as usize, recorded, "{thread} {name}");
        }
        match reason {
            "lock" => assert!(stalls.iter().all(|stall| stall.late_ns == stall.duration_ns)),
            _ => assert!(stalls.iter().all(|stall| stall.late_ns < stall.duration_ns)),
        }
    }
    let page = http::get(watcher.address, "/").body;
    let at = |row: &str| page.find(row);
    let (lock, sleep) = (at("<td>waiter<td>lock<td>critical"), at("<td>ticker<td>sleep"));
    assert!(lock.is_some() && sleep.is_none_or(|sleep| lock < Some(sleep)), "{page}");
}
