// SPDX-License-Identifier: Apache-2.0
//! Busy periods of software that knows nothing of spans: `wallprof tail` names what makes the slow ones slow.
//!
//! Other load takes CPUs away, and makes periods longer, too: what is expected is the first of the other causes.

use std::thread;

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::{Recorder, RecordingFile};
use wallprof_testkit::redis::Redis;
use wallprof_testkit::scenario::{Scenario, Truth};
use wallprof_testkit::stored;

use crate::postgres_server::Postgres;

/// The one kind of a program.
fn busy_periods(recording: &RecordingFile, thread: &str, tail: &str) -> Value {
    let text = recording.read("tail", &["--json", "--kind", "busy", "--thread", thread, "--tail", tail]);
    let mut tail: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(tail["kinds"].as_array().map(Vec::len), Some(1), "{tail}");
    tail["kinds"][0].take()
}

/// Causes that the program has itself, most time first.
fn own_causes(kind: &Value) -> Vec<&Value> {
    let causes = kind["difference"]["causes"].as_array().unwrap_or_else(|| panic!("a difference: {kind}"));
    let of_load =
        |cause: &&Value| ["runnable", "preempted", "irq"].iter().any(|name| cause["state"] == *name);
    causes.iter().filter(|cause| !of_load(cause)).collect()
}

fn is_in(cause: &Value, function: &str) -> bool {
    cause["user_stack"].as_array().is_some_and(|stack| stack.iter().any(|frame| frame["symbol"] == function))
}

#[test]
fn tail_of_redis_is_the_command_that_blocks_it() {
    let test = "tail_of_redis_is_the_command_that_blocks_it";
    let Some(_run) = stored::run(test) else { return };
    let Some(redis) = Redis::start() else {
        return wallprof_testkit::skip(test, "redis-server is not installed");
    };
    let recorder = Recorder::armed(&["-p", &redis.pid().to_string()], &[]);
    let commands = stored::number("commands", || {
        let mut commands = 0;
        thread::scope(|scope| {
            let load = scope.spawn(|| assert!(redis.benchmark(20_000), "the server answers"));
            while commands < 80 || !load.is_finished() {
                assert!(redis.debug_sleep(), "the server obeys");
                commands += 1;
            }
        });
        commands
    });
    let recording = recorder.stop();
    let periods = busy_periods(&recording, "redis-server", "P99")["count"].as_f64().expect("a count");
    // Half as many of the slowest periods as there were commands: how many others there were depends on the machine.
    let tail = format!("P{:.4}", 100.0 - 50.0 * commands as f64 / periods);
    let kind = busy_periods(&recording, "redis-server", &tail);
    let causes = own_causes(&kind);
    assert_eq!(causes.first().map(|first| &first["state"]), Some(&"blocked:sleep".into()), "{causes:#?}");
    // Of a few periods only the sums are kept, and so no place.
    let first = causes.iter().find(|cause| cause["user_stack"].is_array());
    let named = |cause: &&Value| cause["state"] == "blocked:sleep" && is_in(cause, "debugCommand");
    assert!(first.is_some_and(named), "{causes:#?}");
}

#[test]
fn tail_of_postgresql_is_the_lock_of_the_row_that_all_change() {
    let test = "tail_of_postgresql_is_the_lock_of_the_row_that_all_change";
    let Some(_guard) = machine::reserve(test) else { return };
    let Some(server) = Postgres::start() else {
        return wallprof_testkit::skip(test, "PostgreSQL is not installed");
    };
    server.ask("create table hot (id int primary key, n bigint); insert into hot values (1, 0)");
    let script = server.script("update hot set n = n + 1 where id = 1;");
    let recorder = Recorder::armed(&["-p", &server.pid().to_string(), "--children"], &[]);
    // Periods are counted from the first seconds on, in which the wait for the client is found to be idle.
    server.run("pgbench", &["-n", "-f", &script, "-c", "8", "-j", "2", "-T", "8", "postgres"]);
    let recording = recorder.stop();
    let kind = busy_periods(&recording, "postgres", "P95");
    let causes = own_causes(&kind);
    let first = causes.first().expect("a cause");
    assert_eq!(first["meaning"]["name"], "row lock", "{causes:#?}");
}

#[derive(serde::Deserialize)]
struct Served {
    requests: u64,
    blocked: u64,
    blocked_ns: u64,
}

/// No rule knows the program. Its loop polls, and the callback of every fiftieth request waits, with these arguments in
/// this function: often enough that the place of that wait alone would be taken for one where the thread waits for work.
fn assert_wait_in_a_callback_is_a_part_of_the_request(
    test: &str,
    args: &[&str],
    options: &[&str],
    state: &str,
    function: &str,
) -> (RecordingFile, Truth) {
    let mut scenario = Scenario::ready("eventloop", &[&["-d", "8"], args].concat());
    let recorder = Recorder::armed(&[&["-p", &*scenario.pid()], options].concat(), &[]);
    let truth = scenario.run();
    let recording = recorder.stop();
    let served: Served = truth.one("served");
    assert!(served.blocked > 30, "{} of {} requests waited", served.blocked, served.requests);
    // Half of those that waited.
    let tail = format!("P{:.3}", 100.0 - 50.0 * served.blocked as f64 / served.requests as f64);
    let kind = busy_periods(&recording, "loop", &tail);
    let causes = own_causes(&kind);
    let first = causes.first().unwrap_or_else(|| panic!("a cause: {kind}"));
    assert!(first["state"] == state && is_in(first, function), "{causes:#?}");
    let (found, planted) =
        (first["ns"].as_f64().expect("ns"), served.blocked_ns as f64 / served.blocked as f64);
    assert!((0.8..1.2).contains(&(found / planted)), "{test}: {found} ns of {planted}: {kind}");
    (recording, truth)
}

/// When the first busy period of the loop's thread began: epoch ns. The first ones of each second are kept.
fn first_period_ns(recording: &RecordingFile) -> u64 {
    let file = Connection::open_with_flags(recording.path(), OpenFlags::SQLITE_OPEN_READ_ONLY)
        .expect("a recording is an SQLite file");
    let first = "SELECT min(start_epoch_ns) FROM spans WHERE comm = 'loop'";
    file.query_row(first, [], |row| row.get::<_, i64>(0)).expect("a busy period") as u64
}

#[test]
fn sleep_in_a_callback_of_an_unknown_loop_is_a_part_of_the_request() {
    let test = "sleep_in_a_callback_of_an_unknown_loop_is_a_part_of_the_request";
    let Some(_run) = stored::run(test) else { return };
    assert_wait_in_a_callback_is_a_part_of_the_request(
        test,
        &["-b", "20000"],
        &[],
        "blocked:sleep",
        "back_off",
    );
}

#[test]
fn poll_in_a_callback_of_an_unknown_loop_is_a_part_of_the_request() {
    let test = "poll_in_a_callback_of_an_unknown_loop_is_a_part_of_the_request";
    let Some(_run) = stored::run(test) else { return };
    assert_wait_in_a_callback_is_a_part_of_the_request(
        test,
        &["-b", "20000", "-p"],
        &[],
        "blocked:poll",
        "ask_backend",
    );
}

/// Requests come eight at a time, and the loop takes one in a turn: seven of eight polls return at once.
#[test]
fn request_that_a_loop_finds_without_sleeping_is_a_busy_period_of_its_own() {
    let test = "request_that_a_loop_finds_without_sleeping_is_a_busy_period_of_its_own";
    let Some(_guard) = machine::reserve(test) else { return };
    let (recording, truth) = assert_wait_in_a_callback_is_a_part_of_the_request(
        test,
        &["-b", "2000", "-n", "8"],
        &["--span", "loop"],
        "blocked:sleep",
        "back_off",
    );
    // Requests come evenly. Their periods count from when the place is found to be idle.
    let served: Served = truth.one("served");
    let life = truth.lives().into_iter().find(|life| life.name == "loop").expect("the loop's thread");
    let from = first_period_ns(&recording);
    let (start, end) = (truth.epoch_from_mono(life.start_ns), truth.epoch_from_mono(life.end_ns));
    assert!(from < start + (end - start) / 2, "{from} of {start} to {end}");
    let expected = served.requests as f64 * (end - from) as f64 / (end - start) as f64;
    let periods = busy_periods(&recording, "loop", "P99")["count"].as_f64().expect("a count");
    assert!((0.95..1.05).contains(&(periods / expected)), "{periods} of {expected} requests");
    // The twin: without the option, as many as there were sleeps.
    let mut scenario = Scenario::ready("eventloop", &["-d", "4", "-n", "8"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let served: Served = scenario.run().one("served");
    let periods = busy_periods(&recorder.stop(), "loop", "P99")["count"].as_u64().expect("a count");
    assert!(periods <= served.requests / 8, "{periods} of {}", served.requests);
}
