// SPDX-License-Identifier: Apache-2.0
//! Kernel stacks from the cache: there are several at one system call.

use serde::Deserialize;

use wallprof_testkit::contract::{Frame, Stall};
use wallprof_testkit::recorder::Recorder;
use wallprof_testkit::scenario::Scenario;
use wallprof_testkit::stored;

#[derive(Debug, Deserialize)]
struct Reads {
    function: String,
    count: u64,
}

/// Kernel functions on the stack of a thread that waits in one of the scenario's functions, and in none of
/// the others; and those of its waker.
const PLACES: [(&str, &str, &str); 4] = [
    ("read_pipe", "pipe_read", "pipe_write"),
    ("read_event", "eventfd_read", "eventfd_write"),
    ("read_socket", "unix_stream_read_generic", "unix_stream_sendmsg"),
    ("read_timer", "timerfd_read", "timerfd_tmrproc"),
];
/// Well more than the length of a stall, since that is measured by another clock than the logged wait.
const SURELY_A_STALL_NS: u64 = 200_000;
const SYSTEM_CALL_ENTRY: &str = "entry_SYSCALL_64_after_hwframe";

fn symbols(stack: &Option<Vec<Frame>>) -> Vec<&str> {
    stack.iter().flatten().filter_map(|frame| frame.symbol.as_deref()).collect()
}

fn has(symbols: &[&str], part: &str) -> bool {
    symbols.iter().any(|symbol| symbol.contains(part))
}

#[test]
fn each_wait_has_its_own_kernel_stack() {
    let Some(_run) = stored::run("each_wait_has_its_own_kernel_stack") else { return };
    let mut scenario = Scenario::ready("readers", &["-d", "2"]);
    let recorder = Recorder::armed(&["-p", &scenario.pid()], &[]);
    let truth = scenario.run();
    let stalls = recorder.stop().stalls(&["--all"]);
    let reads: Vec<Reads> = truth.all("reads");
    for (function, waits_in, woken_by) in PLACES {
        let of_function: Vec<&Stall> = stalls
            .iter()
            .filter(|stall| {
                stall.comm == "reader"
                    && stall.syscall.as_deref() == Some("read")
                    && stall.user_stack_has(function)
            })
            .collect();
        let count = reads.iter().find(|reads| reads.function == function).expect("the truth").count;
        assert!(
            count > 20 && of_function.len() as u64 * 2 > count,
            "{function}: {} of {count}",
            of_function.len()
        );
        let mut woken = 0;
        for stall in of_function {
            let kernel = symbols(&stall.kernel_stack);
            assert!(has(&kernel, waits_in), "{function}: {kernel:?}");
            assert_eq!(kernel.last(), Some(&SYSTEM_CALL_ENTRY), "{function}");
            for (_, other, _) in PLACES.iter().filter(|place| place.0 != function) {
                assert!(!has(&kernel, other), "{function}: {kernel:?}");
            }
            // A wakeup takes stacks where the wait was a stall by then.
            let Some(waker) = stall.waker.as_ref().filter(|_| stall.blocked_ns >= SURELY_A_STALL_NS) else {
                continue;
            };
            let waker = symbols(&waker.kernel_stack);
            assert!(has(&waker, woken_by), "{function} was woken by {waker:?}");
            woken += 1;
        }
        assert!(woken > 20, "{function}: {woken} wakeups are too few to judge by");
    }
}
