// SPDX-License-Identifier: Apache-2.0
//! What of a stack of Java is no function of the program: the class library, and the virtual machine around it.

use wallprof_model::FrameKind;
use wallprof_model::profile::ResolvedStack;

use crate::site::base_name;

/// The library with the virtual machine.
pub const LIBRARY: &str = "libjvm.so";

/// It, and those with the native methods of the class library.
const LIBRARIES: [&str; 6] = [LIBRARY, "libjava.so", "libnio.so", "libnet.so", "libextnet.so", "libzip.so"];

/// Packages of the class library, and of pools that lend connections and rings: a thread that waits in one waits for the
/// sake of the function that called it.
const PACKAGES: [&str; 15] = [
    "java.",
    "javax.",
    "jdk.",
    "sun.",
    "com.sun.",
    "com.zaxxer.hikari.",
    "org.apache.commons.pool2.",
    "org.apache.commons.dbcp2.",
    "org.apache.tomcat.jdbc.pool.",
    "org.apache.http.",
    "org.apache.hc.",
    "com.mchange.v2.",
    "com.alibaba.druid.pool.",
    "com.lmax.disruptor.",
    "io.agroal.",
];

/// Methods that run what a thread or a pool was given.
const STARTS: [&str; 6] = [
    "java.lang.Thread.run",
    "java.lang.Thread.runWith",
    "java.util.concurrent.ThreadPoolExecutor$Worker.run",
    "java.util.concurrent.ThreadPoolExecutor.runWorker",
    "java.util.concurrent.ForkJoinWorkerThread.run",
    "java.util.concurrent.ForkJoinPool.runWorker",
];

/// What locks and semaphores wait in, no barrier and no queue.
const ACQUIRE: &str = "java.util.concurrent.locks.AbstractQueuedSynchronizer.acquire";

/// Functions of `libjvm.so` below which a thread runs methods.
const NATIVE_STARTS: [&str; 6] = [
    "thread_native_entry",
    "Thread::call_run",
    "JavaThread::run",
    "JavaThread::thread_main_inner",
    "thread_entry",
    "JavaCalls::",
];

/// Those by which all of its other functions wait.
const NATIVE_WAITS: [&str; 6] = [
    "os::PlatformEvent::",
    "PlatformEvent::",
    "os::PlatformMonitor::",
    "PlatformMonitor::",
    "Monitor::",
    "Parker::",
];

/// Code of the virtual machine that it makes at run time: the interpreter, stubs and adapters.
const STUBS: [&str; 8] = [
    "Interpreter",
    "I2C/C2I adapters",
    "resolve_static_call",
    "resolve_virtual_call",
    "resolve_opt_virtual_call",
    "wrong_method_stub",
    "wrong_method_abstract_stub",
    "ic_miss_stub",
];

/// The beginnings of the names of others.
const STUB_STARTS: [&str; 12] = [
    "StubRoutines",
    "Stub Generator",
    "vtable chunks",
    "MethodHandles adapters",
    "SafepointBlob",
    "DeoptimizationBlob",
    "UncommonTrapBlob",
    "ExceptionBlob",
    "handler for ",
    // Since JDK 22.
    "C1 Runtime ",
    "C2 Runtime ",
    "Shared Runtime ",
];

/// And the ends, up to JDK 21.
const STUB_ENDS: [&str; 2] = [" Runtime1 stub", "_Java"];

/// Whether a file is of the virtual machine.
pub(crate) fn is_machine(module: &str) -> bool {
    LIBRARIES.contains(&base_name(module))
}

/// Whether code made at run time is a method of the class library, or a piece of the virtual machine.
pub(crate) fn is_plumbing(symbol: &str) -> bool {
    is_library(symbol) || is_stub(symbol)
}

/// Whether it is a method of the class library, or of a pool.
pub(crate) fn is_library(symbol: &str) -> bool {
    let method = method(symbol);
    PACKAGES.iter().any(|package| method.starts_with(package))
}

/// Whether code made at run time is a piece of the virtual machine.
pub(crate) fn is_stub(symbol: &str) -> bool {
    STUBS.contains(&symbol)
        || STUB_STARTS.iter().any(|start| symbol.starts_with(start))
        || STUB_ENDS.iter().any(|end| symbol.ends_with(end))
}

/// Whether a function of `libjvm.so` says no more than that its caller waits, or that a thread runs.
pub(crate) fn is_native_plumbing(symbol: &str) -> bool {
    NATIVE_WAITS.iter().chain(&NATIVE_STARTS).any(|name| symbol.starts_with(name))
}

/// Whether a function is between the first one of a thread and what the thread was given to do.
pub(crate) fn is_thread_start(symbol: &str) -> bool {
    is_stub(symbol)
        || STARTS.contains(&method(symbol))
        || NATIVE_STARTS.iter().any(|name| symbol.starts_with(name))
}

/// Whether a user stack ends in a method of the class library: of the program's own methods, and of those that tell a
/// lock from a barrier and a queue, nothing is known. A whole stack begins where a thread starts.
pub(crate) fn is_cut(stack: &ResolvedStack) -> bool {
    let first = stack.frames.iter().rfind(|frame| frame.kind != FrameKind::Kernel);
    first.filter(|frame| frame.kind == FrameKind::Jit).is_some_and(|frame| {
        let symbol = frame.lines.last().and_then(|line| line.symbol.as_deref());
        let says_less =
            |symbol: &str| is_library(symbol) && !is_thread_start(symbol) && method(symbol) != ACQUIRE;
        symbol.is_some_and(says_less)
    })
}

/// `java.lang.Object.wait` of `void java.lang.Object.wait(long)`.
fn method(symbol: &str) -> &str {
    let head = symbol.split('(').next().unwrap_or(symbol);
    head.rsplit(' ').next().unwrap_or(head)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wallprof_model::profile::ResolvedFrame;
    use wallprof_model::{StackEnd, SymbolLine};

    use super::*;

    #[test]
    fn stacks_without_the_programs_methods_are_cut_unless_a_thread_starts_there() {
        let is_cut = |methods: &[&str]| {
            let frame = |symbol: &&str| {
                let symbol = (!symbol.is_empty()).then(|| (*symbol).to_owned());
                let line = SymbolLine { symbol, offset: None, file: None, line: None, inlined: false };
                let (kind, lines) = (FrameKind::Jit, vec![line]);
                Arc::new(ResolvedFrame { kind, module: None, build_id: None, address: 0, lines })
            };
            is_cut(&ResolvedStack { frames: methods.iter().map(frame).collect(), end: StackEnd::Unsupported })
        };
        const PARK: &str = "void java.util.concurrent.locks.LockSupport.park(java.lang.Object)";
        assert!(is_cut(&["void jdk.internal.misc.Unsafe.park(boolean, long)", PARK]));
        let acquire = "int java.util.concurrent.locks.AbstractQueuedSynchronizer.acquire(Node, int, boolean)";
        assert!(!is_cut(&[PARK, acquire]), "the timing may say which");
        assert!(!is_cut(&[PARK, "void shop.Orders.run()"]));
        assert!(!is_cut(&[PARK, "void java.lang.Thread.run()"]));
        assert!(!is_cut(&[PARK, ""]), "what has no name may be a method of the program");
        assert!(!is_cut(&[]));
    }
}
