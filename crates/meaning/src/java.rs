// SPDX-License-Identifier: Apache-2.0
//! What of a stack of Java is no function of the program: the class library, and the virtual machine around it.

/// The library with the virtual machine.
pub const LIBRARY: &str = "libjvm.so";

/// Packages of the class library.
const PACKAGES: [&str; 5] = ["java.", "javax.", "jdk.", "sun.", "com.sun."];

/// Methods that run what a thread or a pool was given.
const STARTS: [&str; 6] = [
    "java.lang.Thread.run",
    "java.lang.Thread.runWith",
    "java.util.concurrent.ThreadPoolExecutor$Worker.run",
    "java.util.concurrent.ThreadPoolExecutor.runWorker",
    "java.util.concurrent.ForkJoinWorkerThread.run",
    "java.util.concurrent.ForkJoinPool.runWorker",
];

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

/// Whether code made at run time is a method of the class library, or a piece of the virtual machine.
pub(crate) fn is_plumbing(symbol: &str) -> bool {
    is_library(symbol) || is_stub(symbol)
}

/// Whether it is a method of the class library.
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

/// `java.lang.Object.wait` of `void java.lang.Object.wait(long)`.
fn method(symbol: &str) -> &str {
    let head = symbol.split('(').next().unwrap_or(symbol);
    head.rsplit(' ').next().unwrap_or(head)
}
