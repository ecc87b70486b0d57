//! A busy program without a problem.

use crate::found::Found;
use crate::recorder::Recorder;
use crate::redis_server::Redis;
use crate::stage;

/// Rules that blame the program. The others blame the machine, which is not this test's to keep quiet.
const BLAMING: [&str; 5] = ["lock-wait", "allocator-lock", "deadlock", "wake-chain", "disk-wait"];

#[test]
fn a_busy_redis_is_blamed_for_nothing() {
    let Some(_stage) = stage::enter("a_busy_redis_is_blamed_for_nothing") else { return };
    let Some(redis) = Redis::start() else {
        return stage::skip("a_busy_redis_is_blamed_for_nothing", "redis-server is not installed");
    };
    let recorder = Recorder::armed(&["-p", &redis.pid().to_string()], &[]);
    assert!(redis.benchmark(20_000), "the server answers");
    let found = Found::in_recording(&recorder.stop());
    let blamed: Vec<_> =
        found.findings.iter().filter(|finding| BLAMING.contains(&finding.rule.as_str())).collect();
    assert!(blamed.is_empty(), "{blamed:#?}");
}
