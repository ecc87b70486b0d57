// SPDX-License-Identifier: Apache-2.0
//! Where in the program a stack was, in the program's own words.
//!
//! The leaf of a waiting thread's stack is plumbing: `__lll_lock_wait`, `futex_wait_queue`, `schedule`. A
//! site leaves that out and names the program's functions, `release_order ← handle_tick ← main`, and the
//! library function through which the innermost of them waited: `pthread_mutex_lock`, `malloc`, `fsync`.

use std::sync::Arc;

use wallprof_model::profile::{ResolvedFrame, ResolvedStack};
use wallprof_model::{FrameKind, SymbolLine, is_runtime_library};

use crate::by_stack::{ByFrame, ByStack};
use crate::interner::Interner;
use crate::java;
use crate::short_name::plain_name;
use crate::{interpreted, node};

/// Functions named in a site.
pub const MOST_FUNCTIONS: usize = 3;

/// The program's functions, leaf first, and how it got into the kernel from there. Equal sites group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// At least one and at most three. A function without a symbol is `module+0xaddress`.
    pub functions: Vec<Arc<str>>,
    /// The outermost library function below the first of `functions`.
    pub through: Option<Arc<str>>,
}

impl Site {
    /// The site of a pair of stacks: of the user stack where it has any frame, else of the kernel's.
    pub fn of(user: Option<&ResolvedStack>, kernel: Option<&ResolvedStack>) -> Option<Self> {
        Self::of_stack(stack_of_site(user, kernel)?, &mut Roles::default())
    }

    /// Whether its first function is the program's. Where it is one of Java's class library, the stack was cut before it
    /// reached the program.
    pub fn names_the_program(&self) -> bool {
        self.functions.first().is_some_and(|name| !java::is_library(name))
    }

    /// The site of one of many stacks, with the roles of the frames that all of them share.
    pub fn of_stack(stack: &ResolvedStack, roles: &mut Roles) -> Option<Self> {
        let mut functions = Vec::with_capacity(stack.frames.len());
        for frame in stack.frames.iter() {
            let lines = frame.lines.iter().zip(roles.of(frame));
            functions.extend(lines.map(|(line, role)| Function { symbol: symbol(line), frame, role: *role }));
        }
        from_functions(&functions)
    }
}

/// The sites of the stacks of many stalls: equal ones are one, and each stack is looked at once.
#[derive(Debug, Default)]
pub struct Sites {
    by_stack: ByStack<Option<Arc<Site>>>,
    roles: Roles,
    sites: Interner<Site>,
}

/// What a function is to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Program,
    /// As [`is_plumbing`].
    Plumbing,
    /// Code that is made at run time, of Java's class library or of its virtual machine.
    JavaLibrary,
    /// A function of Java's virtual machine, or a native method of its class library.
    JavaMachine,
}

impl Role {
    /// Of one line of a frame. [`Roles::of`] remembers it.
    pub fn of(frame: &ResolvedFrame, line: &SymbolLine) -> Self {
        let is_machine = || frame.module.as_deref().is_some_and(java::is_machine);
        match frame.kind {
            _ if is_plumbing(frame, line) => Role::Plumbing,
            FrameKind::Jit if symbol(line).is_some_and(java::is_plumbing) => Role::JavaLibrary,
            FrameKind::Native if is_machine() => Role::JavaMachine,
            _ => Role::Program,
        }
    }
}

/// The roles of the lines of frames. A line is compared with a hundred names once for each frame, not for each stack
/// with that frame.
#[derive(Debug, Default)]
pub struct Roles(ByFrame<Role>);

impl Roles {
    /// Of each line of the frame.
    pub fn of(&mut self, frame: &Arc<ResolvedFrame>) -> &[Role] {
        self.0.get(frame, |frame| frame.lines.iter().map(|line| Role::of(frame, line)).collect())
    }
}

impl Sites {
    /// As [`Site::of`].
    pub fn of(&mut self, user: Option<&ResolvedStack>, kernel: Option<&ResolvedStack>) -> Option<Arc<Site>> {
        let Sites { by_stack, roles, sites } = self;
        let stack = stack_of_site(user, kernel)?;
        by_stack.get(stack, |stack| Site::of_stack(stack, roles).map(|site| sites.get(site)))
    }

    pub fn roles(&mut self) -> &mut Roles {
        &mut self.roles
    }
}

/// The user stack where it has any frame, else the kernel's.
pub fn stack_of_site<'s>(
    user: Option<&'s ResolvedStack>,
    kernel: Option<&'s ResolvedStack>,
) -> Option<&'s ResolvedStack> {
    user.filter(|stack| !stack.frames.is_empty()).or(kernel)
}

/// One function of a stack, inlined ones included.
struct Function<'a> {
    symbol: Option<&'a str>,
    frame: &'a ResolvedFrame,
    role: Role,
}

/// The site of a stack of these functions, leaf first.
fn from_functions(functions: &[Function<'_>]) -> Option<Site> {
    // A function of the program in Python or JavaScript says more than the interpreter and its library.
    let has_interpreted = functions.iter().any(|function| interpreted::is_of_program(function.symbol));
    // A method of the program says more than the class library, and this more than the virtual machine.
    let says = |function: &Function<'_>| match function.role {
        Role::Program => function.symbol.is_some() || function.frame.module.is_some(),
        _ => false,
    };
    let is_method = |function: &Function<'_>| {
        let is_own = |name| java::is_library(name) && !is_thread_start(name);
        function.role == Role::JavaLibrary && function.symbol.is_some_and(is_own)
    };
    let has_program = has_interpreted || functions.iter().any(says);
    let has_method = functions.iter().any(is_method);
    let has_machine = functions.iter().any(|function| function.role == Role::JavaMachine);
    let is_plumbing = |function: &Function<'_>| match function.role {
        _ if has_interpreted
            && interpreted::is_runtime(function.symbol, function.frame.module.as_deref()) =>
        {
            true
        }
        Role::Program => !has_program && (has_method || has_machine),
        Role::Plumbing | Role::JavaLibrary => true,
        Role::JavaMachine => {
            has_method || has_program || function.symbol.is_some_and(java::is_native_plumbing)
        }
    };
    let first = functions.iter().position(|function| !is_plumbing(function));
    let Some(first) = first else {
        // Nothing but plumbing: its outermost known function says most.
        let is_known = |function: &&Function<'_>| match has_method {
            true => is_method(function),
            false => function.symbol.is_some_and(|name| !is_thread_start(name)),
        };
        let best = functions.iter().rev().find(is_known);
        return best
            .or(functions.first())
            .map(|function| Site { functions: vec![function.name()], through: None });
    };
    let program: Vec<_> = functions[first..].iter().filter(|function| !is_plumbing(function)).collect();
    // An address says nothing to a reader, where a function around it has a name: those of a stripped program
    // that it exports.
    let is_named_around = |at: usize| {
        let module = program[at].frame.module.as_deref();
        program[at].symbol.is_none()
            && program[at..]
                .iter()
                .any(|outer| outer.symbol.is_some() && outer.frame.module.as_deref() == module)
    };
    let shown = (0..program.len()).filter(|&at| !is_named_around(at)).take(MOST_FUNCTIONS);
    Some(Site {
        functions: shown.map(|at| program[at].name()).collect(),
        through: library_entry(&functions[..first]).map(Function::name),
    })
}

/// The call into the library that says most: the outermost plain C function (`malloc`, not the
/// `operator new` around it nor the `_int_malloc` below), else the outermost one.
fn library_entry<'a, 'f>(plumbing: &'a [Function<'f>]) -> Option<&'a Function<'f>> {
    let is_stub = |function: &&Function<'_>| function.symbol.is_some_and(java::is_stub);
    let user = plumbing.iter().rev().filter(|function| function.frame.kind != FrameKind::Kernel);
    let mut user = user.filter(|function| !is_stub(function));
    let is_plain = |function: &&Function<'_>| function.symbol.is_some_and(is_plain_c_function);
    user.clone().find(is_plain).or_else(|| user.find(|function| function.symbol.is_some()))
}

pub fn is_plain_c_function(symbol: &str) -> bool {
    !symbol.starts_with(['_', '<'])
        && !symbol.starts_with("operator ")
        && !symbol.contains("::")
        && symbol != "syscall"
}

fn symbol(line: &SymbolLine) -> Option<&str> {
    line.symbol.as_deref().filter(|name| !name.is_empty())
}

/// Whether a function is a library's or the kernel's common machinery, which a site leaves out.
pub fn is_plumbing(frame: &ResolvedFrame, line: &SymbolLine) -> bool {
    let symbol = symbol(line);
    match frame.kind {
        FrameKind::Kernel => symbol.is_some_and(is_kernel_plumbing),
        FrameKind::Native | FrameKind::Jit => {
            frame.module.as_deref().is_some_and(is_runtime_library) || symbol.is_some_and(is_runtime_symbol)
        }
    }
}

impl Function<'_> {
    fn name(&self) -> Arc<str> {
        match (self.symbol, &self.frame.module) {
            (Some(symbol), _) => node::without_tier(symbol).into(),
            (None, Some(module)) => format!("{}+{:#x}", base_name(module), self.frame.address).into(),
            (None, None) => format!("{:#x}", self.frame.address).into(),
        }
    }
}

/// The last component of a path.
pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The functions of such libraries where they are linked into the program. Demangled names.
fn is_runtime_symbol(symbol: &str) -> bool {
    const NAMES: [&str; 52] = [
        "_start",
        "__libc_start_main",
        "__libc_start_call_main",
        "start_thread",
        "clone",
        "clone3",
        "__clone",
        "syscall",
        "malloc",
        "free",
        "calloc",
        "realloc",
        "operator new",
        "operator delete",
        "futex_wait",
        "futex_wake",
        "nanosleep",
        "fsync",
        "fdatasync",
        "read",
        "write",
        "poll",
        "epoll_wait",
        "sched_yield",
        "runtime.goexit",
        "runtime.main",
        // Go's calls into C, its switches to another stack, and its locks.
        "runtime.asmcgocall",
        "runtime.cgocall",
        "runtime.cgocallback",
        "runtime.systemstack",
        "runtime.mcall",
        "runtime.mstart",
        "runtime.gopark",
        "runtime.goparkunlock",
        "runtime.goready",
        "runtime.ready",
        "runtime.lock2",
        "runtime.unlock2",
        "runtime.notewakeup",
        "runtime.notesleep",
        // PostgreSQL's own wrappers of poll, of semaphores and of its lock manager.
        "WaitEventSetWait",
        "WaitLatch",
        "WaitLatchOrSocket",
        "PGSemaphoreLock",
        "PGSemaphoreUnlock",
        "LockAcquire",
        // Ruby's, of condition variables and mutexes.
        "rb_native_cond_wait",
        "rb_native_cond_timedwait",
        "rb_native_cond_signal",
        "rb_native_mutex_lock",
        "rb_native_mutex_unlock",
        "LockAcquireExtended",
    ];
    const PREFIXES: [&str; 58] = [
        "__lll_lock",
        "lll_lock",
        "pthread_",
        "__pthread_",
        "___pthread_",
        "__GI_",
        "__libc_",
        "__futex",
        "__syscall",
        "__gthread_",
        "_int_malloc",
        "_int_free",
        "_dl_",
        "std::",
        "core::",
        "alloc::",
        "<std::",
        "<core::",
        "<alloc::",
        "__rust_",
        "tcmalloc::",
        "base::internal::SpinLock",
        "SpinLock::SlowLock",
        "parking_lot",
        "lock_api::",
        "<parking_lot",
        "<lock_api::",
        "crossbeam_channel::",
        "<crossbeam_channel::",
        "flume::",
        "<flume::",
        "r2d2::",
        "absl::",
        "AbslInternal",
        "boost::posix::",
        "boost::condition_variable",
        "boost::concurrent::sync_",
        "spdlog::",
        "QBasicMutex::",
        "QWaitCondition::",
        "runtime.futex",
        "runtime.semasleep",
        "runtime.semawakeup",
        "runtime.semacquire",
        "runtime.semrelease",
        "sync.(*Mutex)",
        "sync.(*RWMutex)",
        "internal/sync.(*Mutex)",
        "sync.runtime_Sem",
        // Go's system calls, and its wrappers of files and connections.
        "internal/runtime/syscall",
        "runtime/internal/syscall",
        "internal/syscall/",
        "syscall.",
        "golang.org/x/sys/",
        "internal/poll.",
        "os.(*File).",
        "os.ignoringEINTR",
        "net.(*",
    ];
    let symbol = &*plain_name(symbol);
    let plain = symbol.split(['(', '@']).next().unwrap_or(symbol);
    // Go's functions in assembly have the name of their calling convention behind their own.
    let plain = plain.strip_suffix(".abi0").unwrap_or(plain);
    NAMES.contains(&plain) || PREFIXES.iter().any(|prefix| symbol.starts_with(prefix))
}

/// Functions every sleep, wakeup, switch and system call has in common.
fn is_kernel_plumbing(symbol: &str) -> bool {
    const NAMES: [&str; 12] = [
        "schedule",
        "__schedule",
        "io_schedule",
        "io_schedule_timeout",
        "do_syscall_64",
        "x64_sys_call",
        "do_futex",
        "futex_wait",
        "__futex_wait",
        "kthread",
        "el0_svc",
        "do_idle",
    ];
    const PREFIXES: [&str; 21] = [
        "try_to_wake_up",
        "ttwu_",
        "wake_up_",
        "__wake_up",
        "swake_up",
        "default_wake_function",
        "autoremove_wake_function",
        "futex_wake",
        "schedule_",
        "preempt_schedule",
        "__cond_resched",
        "futex_wait_",
        "entry_SYSCALL",
        "__x64_sys_",
        "__arm64_sys_",
        "__do_sys_",
        "__se_sys_",
        "ret_from_fork",
        "asm_",
        "irqentry_",
        "exit_to_user_mode",
    ];
    NAMES.contains(&symbol) || PREFIXES.iter().any(|prefix| symbol.starts_with(prefix))
}

fn is_thread_start(symbol: &str) -> bool {
    matches!(
        symbol,
        "_start"
            | "__libc_start_main"
            | "__libc_start_call_main"
            | "start_thread"
            | "clone"
            | "clone3"
            | "__clone"
            | "kthread"
    ) || java::is_thread_start(symbol)
        || symbol.starts_with("ret_from_fork")
        || symbol.starts_with("entry_SYSCALL")
        || symbol == "do_syscall_64"
        || symbol == "__libc_start_main_impl"
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::StackEnd;
    use wallprof_testkit::stacks::strip;

    fn line(symbol: &str, inlined: bool) -> SymbolLine {
        SymbolLine { symbol: (!symbol.is_empty()).then(|| symbol.into()), inlined, ..SymbolLine::default() }
    }

    fn frame(kind: FrameKind, module: &str, symbols: &[&str]) -> Arc<ResolvedFrame> {
        let last = symbols.len() - 1;
        Arc::new(ResolvedFrame {
            kind,
            module: (!module.is_empty()).then(|| module.into()),
            build_id: None,
            address: 0x1234,
            lines: symbols.iter().enumerate().map(|(at, symbol)| line(symbol, at < last)).collect(),
        })
    }

    fn native(frames: &[(&str, &str)]) -> ResolvedStack {
        let frames =
            frames.iter().map(|(module, symbol)| frame(FrameKind::Native, module, &[symbol])).collect();
        ResolvedStack { frames, end: StackEnd::Complete }
    }

    fn kernel(symbols: &[&str]) -> ResolvedStack {
        let frames = symbols.iter().map(|symbol| frame(FrameKind::Kernel, "[kernel]", &[symbol])).collect();
        ResolvedStack { frames, end: StackEnd::Complete }
    }

    fn shown(site: Option<Site>) -> String {
        let site = site.unwrap();
        let through = site.through.map(|through| format!(" [{through}]")).unwrap_or_default();
        format!("{}{through}", site.functions.join(" < "))
    }

    const LIBC: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";
    const APP: &str = "/opt/match/engine";

    #[test]
    fn libc_is_left_out_and_the_call_into_it_is_kept() {
        let user = native(&[
            (LIBC, "__lll_lock_wait"),
            (LIBC, "pthread_mutex_lock"),
            (APP, "release_order"),
            (APP, "handle_tick"),
            (APP, "main"),
            (LIBC, "__libc_start_call_main"),
            (LIBC, "__libc_start_main"),
            (APP, "_start"),
        ]);
        assert_eq!(
            shown(Site::of(Some(&user), None)),
            "release_order < handle_tick < main [pthread_mutex_lock]"
        );
    }

    #[test]
    fn functions_in_javascript_say_more_than_node() {
        let own = |symbol| frame(FrameKind::Native, "/usr/bin/node", &[symbol]);
        let js = |symbol| frame(FrameKind::Jit, "", &[symbol]);
        let frames = [
            frame(FrameKind::Native, LIBC, &["read"]),
            own("uv_fs_read"),
            own("node::fs::Read(v8::FunctionCallbackInfo<v8::Value> const&)"),
            js("JS:~readSync node:fs:708:18"),
            js("JS:^readReport /srv/shop/server.js:10:21"),
            js("JS:^ /srv/shop/server.js:13:20"),
            js("JS:^emit node:events:471:44"),
            own("node::LibuvStreamWrap::OnUvRead(long, uv_buf_t const*)"),
            own("uv_run"),
        ];
        let stack = ResolvedStack { frames: frames.into(), end: StackEnd::Complete };
        let site = Site::of(Some(&stack), None).unwrap();
        let names: Vec<String> = site.functions.iter().map(|name| crate::short_name(name)).collect();
        assert_eq!(names, ["readReport", "server.js:13"]);
    }

    #[test]
    fn functions_in_python_say_more_than_the_interpreter() {
        const PYTHON: &str = "/usr/lib/x86_64-linux-gnu/libpython3.12.so.1.0";
        let py = |name| frame(FrameKind::Jit, "", &[name]);
        let c = |module, name| frame(FrameKind::Native, module, &[name]);
        let eval = || c(PYTHON, "_PyEval_EvalFrameDefault");
        let asleep = [c(LIBC, "clock_nanosleep"), c(PYTHON, "pysleep"), c(PYTHON, "time_sleep"), eval()];
        let shown_of = |callers: &[Arc<ResolvedFrame>]| {
            let frames = [&asleep, callers].concat().into();
            shown(Site::of(Some(&ResolvedStack { frames, end: StackEnd::Complete }), None))
        };
        let run = || py("py::Handle._run:/usr/lib/python3.12/asyncio/events.py");
        let price = py("py::price_order:/srv/orders.py");
        let handle = py("py::Shop.handle:/srv/shop.py");
        assert_eq!(
            shown_of(&[price, eval(), handle, eval(), run(), eval()]),
            "py::price_order:/srv/orders.py < py::Shop.handle:/srv/shop.py [time_sleep]"
        );
        let extension = c("/srv/fast.cpython-312-x86_64-linux-gnu.so", "match_all");
        assert_eq!(
            shown_of(&[extension, eval(), py("py::go:/srv/go.py")]),
            "match_all < py::go:/srv/go.py [time_sleep]"
        );
        let without = "pysleep < time_sleep < _PyEval_EvalFrameDefault [clock_nanosleep]";
        assert_eq!(shown_of(&[]), without, "as without names of Python");
    }

    #[test]
    fn an_allocator_lock_names_malloc() {
        let user = native(&[
            (LIBC, "__lll_lock_wait_private"),
            (LIBC, "_int_malloc"),
            (LIBC, "malloc"),
            ("/usr/lib/libstdc++.so.6.0.30", "operator new(unsigned long)"),
            (APP, "std::string::_M_create(unsigned long&, unsigned long)"),
            (APP, "checksum_error"),
            (APP, "parse"),
        ]);
        assert_eq!(shown(Site::of(Some(&user), None)), "checksum_error < parse [malloc]");
    }

    #[test]
    fn the_dynamic_linker_is_an_answer_too() {
        let user = native(&[
            ("/lib64/ld-linux-x86-64.so.2", "_dl_fixup"),
            ("/lib64/ld-linux-x86-64.so.2", "_dl_runtime_resolve_xsavec"),
            ("/opt/md/libmsg.so", "rate_control"),
        ]);
        assert_eq!(shown(Site::of(Some(&user), None)), "rate_control [_dl_runtime_resolve_xsavec]");
    }

    #[test]
    fn a_static_binary_is_read_by_its_symbols() {
        let user = native(&[
            (APP, "syscall"),
            (APP, "std::sys::pal::unix::futex::futex_wait"),
            (APP, "std::sync::poison::mutex::Mutex<T>::lock"),
            (APP, "engine::book::Book::update"),
            (APP, "std::sys::backtrace::__rust_begin_short_backtrace"),
            (APP, "engine::main"),
        ]);
        assert_eq!(
            shown(Site::of(Some(&user), None)),
            "engine::book::Book::update < engine::main [std::sync::poison::mutex::Mutex<T>::lock]"
        );
    }

    #[test]
    fn the_class_library_and_the_virtual_machine_of_java_are_left_out() {
        const JVM: &str = "/usr/lib/jvm/lib/server/libjvm.so";
        let (native, jit) = (FrameKind::Native, FrameKind::Jit);
        let wait = [
            (native, LIBC, "__futex_abstimed_wait_common"),
            (native, LIBC, "pthread_cond_wait"),
            (native, JVM, "Parker::park(bool, long)"),
            (native, JVM, "Unsafe_Park"),
            (jit, "", "void jdk.internal.misc.Unsafe.park(boolean, long)"),
            (jit, "", "void java.util.concurrent.locks.LockSupport.park(java.lang.Object)"),
        ];
        let start = [
            (jit, "", "void java.lang.Thread.run()"),
            (jit, "", "StubRoutines (1)"),
            (
                native,
                JVM,
                "JavaCalls::call_helper(JavaValue*, methodHandle const&, JavaCallArguments*, JavaThread*)",
            ),
            (native, JVM, "thread_entry(JavaThread*, JavaThread*)"),
            (native, JVM, "Thread::call_run()"),
            (native, JVM, "thread_native_entry(Thread*)"),
            (native, LIBC, "start_thread"),
        ];
        let site = |inner: &[(FrameKind, &str, &str)], methods: &[&str]| {
            let methods: Vec<_> = methods.iter().map(|&method| (jit, "", method)).collect();
            let whole = [inner, &methods, &start].concat();
            let frames = whole.iter().map(|(kind, module, symbol)| frame(*kind, module, &[symbol])).collect();
            shown(Site::of(Some(&ResolvedStack { frames, end: StackEnd::Complete }), None))
        };
        let lock = "void java.util.concurrent.locks.ReentrantLock.lock()";
        let (take, run) = ("int shop.Orders.take(long)", "void shop.Orders.run()");
        assert_eq!(site(&wait, &[lock, take, run]), format!("{take} < {run} [{lock}]"));
        let monitor = [
            (native, LIBC, "pthread_cond_timedwait"),
            (native, JVM, "os::PlatformEvent::park(long)"),
            (native, JVM, "ObjectMonitor::EnterI(JavaThread*)"),
            (native, JVM, "SharedRuntime::complete_monitor_locking_C(oopDesc*, BasicLock*, JavaThread*)"),
            (jit, "", "_complete_monitor_locking_Java"),
        ];
        assert_eq!(site(&monitor, &[take, run]), format!("{take} < {run} [pthread_cond_timedwait]"));
        let read = [
            (native, LIBC, "read"),
            (native, "/usr/lib/jvm/lib/libnio.so", "Java_sun_nio_ch_SocketDispatcher_read0"),
            (jit, "", "int sun.nio.ch.SocketDispatcher.read0(java.io.FileDescriptor, long, int)"),
        ];
        assert!(site(&read, &[take, run]).starts_with(&format!("{take} < {run} [")));
        let work = "java.lang.Runnable java.util.concurrent.ThreadPoolExecutor.getTask()";
        let worker = "void java.util.concurrent.ThreadPoolExecutor$Worker.run()";
        assert_eq!(site(&wait, &[work, worker]), work, "a worker without work");
        let enter = "ObjectMonitor::EnterI(JavaThread*)";
        let locking = "SharedRuntime::complete_monitor_locking_C(oopDesc*, BasicLock*, JavaThread*)";
        let without_names = format!("{enter} < {locking} [pthread_cond_timedwait]");
        assert_eq!(site(&monitor, &["", ""]), without_names);
        let of_machine = [(native, JVM, "VMThread::wait_for_operation()"), (native, JVM, "VMThread::run()")];
        assert_eq!(site(&of_machine, &[]), "VMThread::wait_for_operation() < VMThread::run()");
    }

    #[test]
    fn the_plumbing_of_go_is_left_out() {
        let call = native(&[
            (LIBC, "__lll_lock_wait"),
            (LIBC, "pthread_mutex_lock"),
            (APP, "slow_native"),
            (APP, "runtime.asmcgocall.abi0"),
            (APP, "runtime.cgocall"),
            (APP, "main._Cfunc_slow_native"),
        ]);
        assert_eq!(
            shown(Site::of(Some(&call), None)),
            "slow_native < main._Cfunc_slow_native [pthread_mutex_lock]"
        );
        let sync = native(&[
            (APP, "internal/runtime/syscall/linux.Syscall6"),
            (APP, "syscall.RawSyscall6"),
            (APP, "syscall.Fsync"),
            (APP, "internal/poll.(*FD).Fsync.func1"),
            (APP, "internal/poll.ignoringEINTR"),
            (APP, "os.(*File).Sync"),
            (APP, "main.(*Store).SaveOrder"),
            (APP, "runtime.goexit.abi0"),
        ]);
        assert_eq!(shown(Site::of(Some(&sync), None)), "main.(*Store).SaveOrder [os.(*File).Sync]");
        let poll = native(&[
            (APP, "internal/runtime/syscall/linux.Syscall6"),
            (APP, "internal/runtime/syscall/linux.EpollWait"),
            (APP, "runtime.netpoll"),
        ]);
        assert!(shown(Site::of(Some(&poll), None)).starts_with("runtime.netpoll ["));
        let switched = native(&[(APP, "runtime.asmcgocall.abi0"), (APP, "main._Cfunc_slow_native")]);
        assert!(shown(Site::of(Some(&switched), None)).starts_with("main._Cfunc_slow_native"));
        let lock = native(&[
            (APP, "runtime.futex.abi0"),
            (APP, "runtime.semasleep"),
            (APP, "runtime.semacquire1"),
            (APP, "internal/sync.(*Mutex).lockSlow"),
            (APP, "sync.(*Mutex).Lock"),
            (APP, "main.settle"),
        ]);
        assert!(shown(Site::of(Some(&lock), None)).starts_with("main.settle"));
    }

    #[test]
    fn functions_without_a_name_are_left_out_where_one_around_them_has_one() {
        let mut user = native(&[(APP, "wait_for_row"), (APP, "read_row"), (APP, "find"), (APP, "main")]);
        strip(&mut user, 0);
        strip(&mut user, 2);
        assert_eq!(shown(Site::of(Some(&user), None)), "read_row < main");
        strip(&mut user, 3);
        let shown = shown(Site::of(Some(&user), None));
        assert!(shown.starts_with("read_row < ") && shown.contains("+0x"), "none is around those: {shown}");
    }

    #[test]
    fn inlined_functions_and_unknown_symbols_count() {
        let stack = ResolvedStack {
            frames: [
                frame(FrameKind::Native, LIBC, &["read"]),
                frame(FrameKind::Native, APP, &["read_line", "read_config"]),
                frame(FrameKind::Native, APP, &[""]),
            ]
            .into(),
            end: StackEnd::Truncated,
        };
        assert_eq!(shown(Site::of(Some(&stack), None)), "read_line < read_config < engine+0x1234 [read]");
        let jit =
            ResolvedStack { frames: [frame(FrameKind::Jit, "", &[""])].into(), end: StackEnd::Truncated };
        assert_eq!(shown(Site::of(Some(&jit), None)), "0x1234");
    }

    #[test]
    fn kernel_threads_are_named_by_their_kernel_functions() {
        let stack = kernel(&[
            "__schedule",
            "schedule",
            "jbd2_journal_commit_transaction",
            "kjournald2",
            "kthread",
            "ret_from_fork",
        ]);
        assert_eq!(shown(Site::of(None, Some(&stack))), "jbd2_journal_commit_transaction < kjournald2");
        let empty = ResolvedStack { frames: [].into(), end: StackEnd::ReadFailed };
        assert_eq!(
            shown(Site::of(Some(&empty), Some(&stack))),
            "jbd2_journal_commit_transaction < kjournald2"
        );
        assert_eq!(Site::of(Some(&empty), None), None);
        assert_eq!(Site::of(None, None), None);
    }

    #[test]
    fn interrupt_is_named_by_its_function() {
        let stack =
            kernel(&["try_to_wake_up", "__wake_up_common", "blk_mq_complete_request", "virtblk_done"]);
        assert_eq!(shown(Site::of(None, Some(&stack))), "blk_mq_complete_request < virtblk_done");
    }

    #[test]
    fn a_stack_of_plumbing_only_still_has_a_site() {
        let user = native(&[
            (LIBC, "__lll_lock_wait"),
            (LIBC, "pthread_mutex_lock"),
            (LIBC, "start_thread"),
            (LIBC, "clone3"),
        ]);
        assert_eq!(shown(Site::of(Some(&user), None)), "pthread_mutex_lock");
        assert_eq!(shown(Site::of(None, Some(&kernel(&["__schedule", "schedule"])))), "schedule");
    }
}
