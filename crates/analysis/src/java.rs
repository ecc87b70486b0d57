// SPDX-License-Identifier: Apache-2.0
//! What of a stack of Java is no function of the program: the class library, and the virtual machine around it.

/// The library with the virtual machine.
pub(crate) const LIBRARY: &str = "libjvm.so";

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
const NATIVE_STARTS: [&str; 7] = [
    "thread_native_entry",
    "Thread::call_run",
    "JavaThread::run",
    "JavaThread::thread_main_inner",
    "thread_entry",
    "JavaCalls::",
    "jni_",
];

/// Those by which a method waits, or ends a wait.
const NATIVE_WAITS: [&str; 16] = [
    "Parker::",
    "Unsafe_Park",
    "Unsafe_Unpark",
    "os::PlatformEvent::",
    "PlatformEvent::",
    "ObjectMonitor::",
    "ObjectSynchronizer::",
    "SharedRuntime::monitor_",
    "SharedRuntime::complete_monitor_",
    "InterpreterRuntime::monitor",
    "Runtime1::monitor",
    "JVM_MonitorWait",
    "JVM_MonitorNotify",
    "JVM_Sleep",
    "JavaThread::sleep",
    "VMThread::execute",
];

/// Code of the virtual machine that it makes at run time: stubs, adapters and the interpreter.
const STUBS: [&str; 12] = [
    "Interpreter",
    "StubRoutines",
    "Stub Generator",
    "RuntimeStub",
    "I2C/C2I adapters",
    "vtable chunks",
    "MethodHandles adapters",
    "SafepointBlob",
    "DeoptimizationBlob",
    "UncommonTrapBlob",
    "ExceptionBlob",
    "handler for ",
];

/// Whether code made at run time is a method of the class library, or a piece of the virtual machine.
pub(crate) fn is_plumbing(symbol: &str) -> bool {
    let method = method(symbol);
    PACKAGES.iter().any(|package| method.starts_with(package)) || is_stub(symbol)
}

/// Whether code made at run time is a piece of the virtual machine.
pub(crate) fn is_stub(symbol: &str) -> bool {
    STUBS.iter().any(|stub| symbol.starts_with(stub)) || symbol.ends_with(" Runtime1 stub")
}

/// Whether a function of `libjvm.so` is between the program and a wait, or below the program.
pub(crate) fn is_native_plumbing(symbol: &str) -> bool {
    NATIVE_WAITS.iter().chain(&NATIVE_STARTS).any(|name| symbol.starts_with(name))
}

pub(crate) fn is_thread_start(symbol: &str) -> bool {
    STARTS.contains(&method(symbol)) || NATIVE_STARTS.iter().any(|name| symbol.starts_with(name))
}

/// `java.lang.Object.wait` of `void java.lang.Object.wait(long)`.
fn method(symbol: &str) -> &str {
    let head = symbol.split('(').next().unwrap_or(symbol);
    head.rsplit(' ').next().unwrap_or(head)
}
