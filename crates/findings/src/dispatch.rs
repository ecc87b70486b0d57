// SPDX-License-Identifier: Apache-2.0
//! Event loops by the names of their functions: where their threads wait for work, if that is no poll, and
//! the functions that call what their users call a command, a task or a handler.

use std::sync::LazyLock;

use wallprof_meaning::glob::Glob;

/// What is known of a loop.
struct KnownLoop {
    /// Globs of functions further out than a wait for work through a condition variable.
    waits_in: &'static [&'static str],
    /// Globs of functions whose threads do nothing else than to serve a loop.
    serves: &'static [&'static str],
    /// Globs of functions that call a part of the program, some through each other. Each needs `below`
    /// further out.
    calls: &'static [&'static str],
    /// A function further out than those of `calls`, which have names that other programs use, too.
    below: Option<&'static str>,
    /// What the called part is.
    word: &'static str,
}

/// In the order in which they are asked. Tried with tokio 1.54.1, Node.js 20.20.2 and Debian 12's Redis
/// 7.0.15 and nginx 1.22.1.
const KNOWN: [KnownLoop; 7] = [
    KnownLoop {
        // Not the threads of spawn_blocking, which are made for what waits.
        waits_in: &["*tokio::runtime::scheduler::*::worker::Context::park*"],
        serves: &["*tokio::runtime::scheduler::*::worker::Context::run_task*"],
        calls: &["*tokio::runtime::task::core::Core<*>::poll*", "*tokio::loom::std::unsafe_cell::*"],
        below: None,
        word: "task",
    },
    KnownLoop {
        waits_in: &[],
        serves: &["aeMain"],
        calls: &["call"],
        below: Some("processCommand"),
        word: "command",
    },
    // Node's own functions that JavaScript calls, else the callback of libuv that runs JavaScript.
    KnownLoop {
        waits_in: &[],
        serves: &[],
        calls: &["v8::internal::FunctionCallbackArguments::Call(*"],
        below: None,
        word: "binding",
    },
    KnownLoop { waits_in: &[], serves: &[], calls: &["uv__*"], below: None, word: "callback" },
    // What answers a request: a module's handler in one of the phases. Else an event's handler.
    KnownLoop {
        waits_in: &[],
        serves: &["ngx_process_events_and_timers"],
        calls: &["ngx_http_core_*_phase"],
        below: Some("ngx_http_core_run_phases"),
        word: "handler",
    },
    KnownLoop {
        waits_in: &[],
        serves: &[],
        calls: &["ngx_*_process_events", "ngx_event_process_posted", "ngx_event_expire_timers"],
        below: None,
        word: "handler",
    },
    KnownLoop {
        waits_in: &[],
        serves: &["*io.netty.channel.nio.NioEventLoop.run*", "*io.netty.channel.epoll.EpollEventLoop.run*"],
        calls: &["*io.netty.channel.*ChannelHandlerContext.*", "*io.netty.channel.DefaultChannelPipeline*"],
        below: None,
        word: "handler",
    },
];

struct Globs {
    waits_in: Vec<Glob>,
    serves: Vec<Glob>,
    calls: Vec<Glob>,
    below: Option<&'static str>,
    word: &'static str,
}

static GLOBS: LazyLock<Vec<Globs>> = LazyLock::new(|| {
    let globs = |texts: &[&str]| texts.iter().filter_map(|text| Glob::new(text).ok()).collect();
    let known = |known: &KnownLoop| Globs {
        waits_in: globs(known.waits_in),
        serves: globs(known.serves),
        calls: globs(known.calls),
        below: known.below,
        word: known.word,
    };
    KNOWN.iter().map(known).collect()
});

/// Whether a wait below these functions, from the root inwards, is one of a loop for work.
pub(super) fn waits_for_work<'f>(functions: impl Iterator<Item = &'f str> + Clone) -> bool {
    let has = |glob: &Glob| functions.clone().any(|function| glob.matches(function));
    GLOBS.iter().any(|known| known.waits_in.iter().any(has))
}

/// Of functions from the root inwards, the first one inside of which a thread does nothing else than to serve a loop, by
/// its index.
pub(super) fn serves<'f>(mut functions: impl Iterator<Item = Option<&'f str>>) -> Option<usize> {
    functions.position(|function| {
        let is_one = |glob: &Glob| function.is_some_and(|function| glob.matches(function));
        GLOBS.iter().any(|known| known.serves.iter().any(is_one))
    })
}

/// Whether the thread has given its loop to another one, to wait itself: below tokio's function for that.
pub(super) fn has_left<'f>(mut functions: impl Iterator<Item = Option<&'f str>>) -> bool {
    functions.any(|function| function.is_some_and(|function| function.contains("::block_in_place")))
}

/// Of functions from the root inwards, the one that a known loop called, by its index, and what it is.
pub(super) fn called<'f>(
    functions: impl Iterator<Item = Option<&'f str>> + Clone,
) -> Option<(usize, &'static str)> {
    GLOBS.iter().find_map(|known| {
        let mut is_below = known.below.is_none();
        let is_call = |function: &str| known.calls.iter().any(|glob| glob.matches(function));
        let at = functions.clone().position(|function| {
            let Some(function) = function else { return false };
            let is_found = is_below && is_call(function);
            is_below |= known.below == Some(function);
            is_found
        })?;
        let rest = functions.clone().skip(at + 1);
        let inwards = rest.take_while(|function| function.is_none_or(is_call)).count();
        functions.clone().nth(at + 1 + inwards).map(|_| (at + 1 + inwards, known.word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(functions: &[&'static str]) -> Option<(&'static str, &'static str)> {
        let named = functions.iter().map(|name| (!name.is_empty()).then_some(*name));
        called(named).map(|(at, word)| (functions[at], word))
    }

    #[test]
    fn all_globs_are_globs() {
        for (globs, known) in GLOBS.iter().zip(&KNOWN) {
            assert_eq!(globs.waits_in.len() + globs.calls.len(), known.waits_in.len() + known.calls.len());
        }
    }

    /// Stacks as recorded, from the root inwards.
    #[test]
    fn command_and_task_are_named() {
        let redis = ["main", "aeMain", "", "readQueryFromClient", "processCommand", "call", "debugCommand"];
        assert_eq!(found(&redis), Some(("debugCommand", "command")));
        assert_eq!(found(&["main", "call", "debugCommand"]), None, "another program's function");
        assert_eq!(found(&redis[..6]), None, "called nothing");
        let tokio = [
            "tokio::runtime::scheduler::multi_thread::worker::Context::run_task",
            "tokio::runtime::task::harness::Harness<T,S>::poll",
            "tokio::runtime::task::core::Core<T,S>::poll",
            "",
            "runtime::resize_images::{{closure}}",
            "std::thread::functions::sleep",
        ];
        assert_eq!(found(&tokio), Some(("runtime::resize_images::{{closure}}", "task")));
    }

    /// Stacks as recorded, from the function on that the idle loop does not have.
    #[test]
    fn callback_binding_and_handler_are_named() {
        let read = ["uv__stream_io", "uv__read", "node::LibuvStreamWrap::OnUvRead(long)", "Builtins_JSEntry"];
        assert_eq!(found(&read), Some((read[2], "callback")));
        assert_eq!(found(&read[..2]), None, "libuv's own work");
        let call = "v8::internal::FunctionCallbackArguments::Call(v8::internal::CallHandlerInfo)";
        let derive =
            [&read[..], &["", call, "node::crypto::CryptoJob<T>::Run()", "PKCS5_PBKDF2_HMAC"]].concat();
        assert_eq!(found(&derive), Some(("node::crypto::CryptoJob<T>::Run()", "binding")));
        let nginx = [
            "ngx_epoll_process_events",
            "ngx_http_core_run_phases",
            "ngx_http_core_content_phase",
            "ngx_http_static_handler",
        ];
        assert_eq!(found(&nginx), Some(("ngx_http_static_handler", "handler")));
        assert_eq!(found(&nginx[..2]), Some(("ngx_http_core_run_phases", "handler")));
    }

    #[test]
    fn worker_waits_for_work_and_a_blocking_thread_does_not() {
        let worker = ["tokio::runtime::scheduler::multi_thread::worker::Context::park_internal", "park"];
        assert!(waits_for_work(worker.into_iter()));
        let blocking = ["tokio::runtime::blocking::pool::Inner::run", "tokio::runtime::park::Inner::park"];
        assert!(!waits_for_work(blocking.into_iter()));
    }
}
