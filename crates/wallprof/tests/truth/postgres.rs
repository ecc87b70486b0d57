// SPDX-License-Identifier: Apache-2.0
//! `-p POSTMASTER --children` on a real PostgreSQL, whose connections are a process each.

use std::collections::BTreeSet;

use serde_json::Value;
use wallprof_testkit::contract::Report;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;

use crate::ledger::assert_adds_up;
use crate::postgres_server::Postgres;

const PIDS: &str = "select string_agg(pid::text, ',') from pg_stat_activity";

fn pids(text: &str) -> BTreeSet<u32> {
    text.split(',').map(|pid| pid.trim().parse().unwrap_or_else(|_| panic!("{text}"))).collect()
}

fn recorded(report: &Report) -> BTreeSet<u32> {
    report.threads.iter().map(|thread| thread.pid).collect()
}

/// Background processes that ran before, and each backend from its first instruction. A second server, whose
/// processes have the same names, is not recorded.
#[test]
fn a_postmasters_backends_are_its_children() {
    let Some(_guard) = machine::reserve("a_postmasters_backends_are_its_children") else { return };
    let (Some(server), Some(beside)) = (Postgres::start(), Postgres::start()) else {
        return wallprof_testkit::skip(
            "a_postmasters_backends_are_its_children",
            "PostgreSQL is not installed",
        );
    };
    server.run("pgbench", &["-i", "-s", "1", "-q", "postgres"]);
    let before = pids(&server.ask(&format!("{PIDS} where backend_type <> 'client backend'")));
    let recorder = Recorder::armed(&["-p", &server.pid().to_string(), "--children"], &[]);
    // A new connection for each transaction.
    server.run("pgbench", &["-C", "-S", "-c", "2", "-t", "20", "postgres"]);
    let backends = [(); 3].map(|()| pids(&server.ask("select pg_backend_pid()")));
    let others = pids(&beside.ask("select pg_backend_pid()"));
    let report = recorder.stop().report();
    let found = recorded(&report);
    assert!(before.is_subset(&found), "{before:?}: {:#?}", report.threads);
    for backend in backends.iter().flatten() {
        assert!(found.contains(backend), "{backend}: {:#?}", report.threads);
    }
    // pgbench's 40 transactions, its own query of the tables, and the three queries.
    let born = found.difference(&before).count();
    assert!(born >= 40 + 3, "{born} processes came: {:#?}", report.threads);
    assert!(found.contains(&server.pid()) && found.is_disjoint(&others), "{:#?}", report.threads);
    assert!(!found.contains(&beside.pid()), "{:#?}", report.threads);
    report.threads.iter().for_each(assert_adds_up);
    // A backend authenticates, plans and sends before it ends: some milliseconds of its own.
    for thread in
        report.threads.iter().filter(|thread| backends.iter().any(|pids| pids.contains(&thread.pid)))
    {
        assert!(thread.on_cpu_ns > 0 && thread.end_ns > thread.start_ns, "{thread:#?}");
    }
}

/// Debian's PostgreSQL has USDT probes, with counters that switch them on.
#[test]
fn spans_between_usdt_probes_are_the_transactions_of_the_client() {
    let test = "spans_between_usdt_probes_are_the_transactions_of_the_client";
    let Some(_guard) = machine::reserve(test) else { return };
    let Some(server) = Postgres::start() else {
        return wallprof_testkit::skip(test, "PostgreSQL is not installed");
    };
    server.run("pgbench", &["-i", "-s", "1", "-q", "postgres"]);
    let name = "transaction__start..transaction__commit";
    let span = format!("usdt:{}:postgresql:{name}", server.program().display());
    let recorder = Recorder::armed(&["-p", &server.pid().to_string(), "--children", "--span", &span], &[]);
    let row = "update pgbench_branches set bbalance = bbalance + 1 where bid = 1;";
    let script = server.script(&format!("begin;\n{row}\n\\sleep 2 ms\nend;\n"));
    server.run("pgbench", &["-n", "-c", "4", "-t", "100", "-f", &script, "postgres"]);
    let recording = recorder.stop();
    let text = recording.read("tail", &["--json", "--kind", name, "--tail", "P90"]);
    let tail: Value = serde_json::from_str(&text).expect("JSON");
    let kind = &tail["kinds"][0];
    // Some more are the server's own, and those with which pgbench asks what there is.
    let count = kind["count"].as_u64().expect("a count");
    assert!((400..450).contains(&count), "{kind}");
    assert_eq!(kind["source"], "usdt");
    // One after the other has the row: a transaction waits for those of three others, for 2 ms each.
    let median = kind["p50_ns"].as_u64().expect("a time");
    assert!((6_000_000..60_000_000).contains(&median), "{kind}");
    assert_eq!(kind["tail"]["states"]["unknown"], 0, "{kind}");
    let losses = recording.report().losses;
    assert_eq!(losses.get("probed_spans_lost"), None, "{losses:?}");
}
