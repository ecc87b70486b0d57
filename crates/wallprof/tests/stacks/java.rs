// SPDX-License-Identifier: Apache-2.0
//! Methods of Java, compiled, compiled as parts of others, and interpreted, in a virtual machine that was started
//! without options for profilers.

use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};

use wallprof_model::SymbolLine;
use wallprof_testkit::lines::Lines;
use wallprof_testkit::machine;
use wallprof_testkit::recorder::Recorder;

use crate::taken::{Doing, Taken, user_stacks};

/// `seldom` stays interpreted, between two methods that are compiled. `Parts.middle` is compiled as a part of its caller.
const SOURCE: &str = r#"public class Waits {
    static volatile int sink;
    static int inner(int micros) {
        if (micros > 0) java.util.concurrent.locks.LockSupport.parkNanos(1000L * micros);
        return sink += micros;
    }
    static int outer(int micros) { return Parts.middle(micros) + inner(0); }
    static int seldom(int micros) { return outer(micros) + 1; }
    static int top(int micros) { return micros > 0 && micros % 2 == 0 ? seldom(micros) : outer(micros); }
    public static void main(String[] arguments) throws Exception {
        // Until all is compiled for good, with every branch taken.
        for (int i = 0; i < 80_000; i++) top(i % 1000 == 0 ? 2 : i % 4 == 0 ? 1 : 0);
        for (int i = 0; ; i++) {
            if (i == 500) System.out.println("ready");
            top(1000 + (i % 8 == 0 ? 0 : 1));
        }
    }
}
class Parts {
    static int middle(int micros) {
        return Waits.inner(micros) - 1;
    }
}
"#;
/// In `SOURCE`.
const LINE_IN_MIDDLE: u32 = 21;

/// Killed when dropped.
struct Java(Child);

impl Java {
    /// `None` where no JDK is installed.
    fn start(folder: &std::path::Path) -> Option<Self> {
        let source = folder.join("Waits.java");
        std::fs::write(&source, SOURCE).expect("a scratch file");
        let compiled = Command::new("javac").arg(&source).status();
        match compiled {
            Ok(status) => assert!(status.success(), "javac refuses the program"),
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => panic!("javac does not start: {error}"),
        }
        let mut java = Command::new("java")
            // As methods of a large program are, which are inlined in others only in part.
            .args(["-XX:CompileCommand=quiet", "-XX:CompileCommand=dontinline,Waits::*"])
            .arg("-XX:CompileCommand=exclude,Waits::seldom")
            .args(["-cp".as_ref(), folder.as_os_str(), "Waits".as_ref()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map(Java)
            .expect("java starts");
        let mut lines = Lines::from_pipe("java", java.0.stdout.take().expect("a pipe"));
        assert!(lines.find(|line| line == "ready").is_some(), "java ended early");
        Some(java)
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The stack's methods of the program itself, innermost first.
fn methods(stack: &Taken) -> Vec<&str> {
    let methods = stack.lines.iter().filter_map(|line| line.symbol.as_deref()?.strip_prefix("int "));
    methods.filter(|method| method.starts_with("Waits.") || method.starts_with("Parts.")).collect()
}

/// The lines of the method that was compiled as a part of another.
fn lines_of_part(stack: &Taken) -> Option<(&str, u32)> {
    let is_part =
        |line: &&SymbolLine| line.inlined && line.symbol.as_deref() == Some("int Parts.middle(int)");
    let line = stack.lines.iter().find(is_part)?;
    Some((line.file.as_deref()?, line.line?))
}

#[test]
fn methods_of_java_have_callers_and_names_without_any_option() {
    let name = "methods_of_java_have_callers_and_names_without_any_option";
    let Some(_guard) = machine::reserve(name) else { return };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let Some(java) = Java::start(folder.path()) else {
        return wallprof_testkit::skip(name, "javac is not installed");
    };
    let recorder = Recorder::armed(&["-p", &java.0.id().to_string(), "-d", "3"], &[]);
    let (status, recording) = recorder.wait();
    assert!(status.success());
    let stacks = user_stacks(&recording.path());
    let is_waiting = |taken: &&Taken| taken.doing == Doing::Blocked && !methods(taken).is_empty();
    let waiting: Vec<&Taken> = stacks.iter().filter(is_waiting).collect();
    let count = |is_one: &dyn Fn(&Taken) -> bool| -> u64 {
        waiting.iter().filter(|stack| is_one(stack)).map(|stack| stack.count).sum()
    };
    let all = count(&|_| true);
    let complete = count(&Taken::is_complete);
    assert!(all >= 500 && complete * 100 >= all * 98, "{complete} of {all}");
    let callees = ["Waits.inner(int)", "Parts.middle(int)", "Waits.outer(int)"];
    let starts = |stack: &Taken, callers: &[&str]| {
        methods(stack).strip_prefix(&callees).is_some_and(|rest| rest.starts_with(callers))
    };
    let direct = count(&|stack| starts(stack, &["Waits.top(int)"]));
    let through = count(&|stack| starts(stack, &["Waits.seldom(int)", "Waits.top(int)"]));
    let with_line = count(&|stack| lines_of_part(stack) == Some(("Waits.java", LINE_IN_MIDDLE)));
    assert!(direct * 100 >= all * 60, "{direct} of {all}");
    assert!(through * 100 >= all * 8, "{through} of {all} through the interpreted method");
    assert!(with_line * 100 >= all * 60, "{with_line} of {all} with the line in the part of a method");
}
