// SPDX-License-Identifier: Apache-2.0
//! Real software: a busy Redis has threads that wait for work. Those waits are no stalls.

use wallprof_testkit::contract::Stall;
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::redis::Redis;
use wallprof_testkit::stored;

use crate::ledger::assert_adds_up;

const VOLUNTARY: [&str; 4] = ["wait", "poll", "sleep", "child"];
/// The recorder's own.
const MIN_STALL_NS: u64 = 100_000;

/// Woken and then kept waiting for a CPU, or woken late: those are involuntary. A timer that is late can be
/// later than the client, whose request ends the wait then.
fn overslept(stall: &Stall) -> bool {
    let is_late = |asked: u64| stall.duration_ns >= asked + MIN_STALL_NS;
    stall.runnable_ns >= MIN_STALL_NS || stall.asked_ns.is_some_and(is_late)
}

#[test]
fn waits_of_idle_redis_workers_are_no_stalls() {
    let Some(_run) = stored::run("waits_of_idle_redis_workers_are_no_stalls") else { return };
    let Some(redis) = Redis::start() else {
        return wallprof_testkit::skip(
            "waits_of_idle_redis_workers_are_no_stalls",
            "redis-server is not installed",
        );
    };
    let recorder = Recorder::armed(&["-p", &redis.pid().to_string()], &[]);
    assert!(redis.benchmark(20_000), "the server answers");
    let recording = recorder.stop();
    let report = recording.report();
    let workers: Vec<_> = report.threads.iter().filter(|thread| thread.tid != thread.pid).collect();
    for name in ["bio_close_file", "bio_aof", "bio_lazy_free"] {
        assert!(workers.iter().any(|thread| thread.comm.starts_with(name)), "{name} is in {workers:#?}");
    }
    for thread in &report.threads {
        assert_adds_up(thread);
    }

    let stalls = recording.stalls(&[]);
    let is_voluntary_stall = |stall: &&Stall| VOLUNTARY.contains(&stall.reason.as_str()) && !overslept(stall);
    let idle: Vec<&Stall> = stalls.iter().filter(is_voluntary_stall).collect();
    assert!(idle.is_empty(), "waits for work: {idle:#?}");
    let locks: Vec<&Stall> =
        stalls.iter().filter(|stall| stall.reason == "lock" && stall.tid != stall.pid).collect();
    assert!(locks.is_empty(), "idle workers wait for no lock: {locks:#?}");

    // `--all` shows them: each worker waited all the time.
    let all = recording.stalls(&["--all"]);
    for worker in workers {
        let waits = all.iter().filter(|stall| stall.thread == worker.id && stall.reason == "wait");
        assert!(waits.clone().count() >= 1, "a wait of {worker:#?}");
        assert!(waits.clone().all(|stall| stall.voluntary), "{:#?}", waits.collect::<Vec<_>>());
    }
}
