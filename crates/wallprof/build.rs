// SPDX-License-Identifier: Apache-2.0
//! Compiles the scenarios of `wallprof demo` into one program, which the binary contains in compressed form, as it
//! does the pages of `wallprof help`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;

/// The scenarios with an instructive report; a test compares them with the demo's own list.
const SCENARIOS: [&str; 6] = ["lock", "preempted", "fsync", "pingpong", "deadlock", "sleepers"];

/// The pages of `wallprof help`, in docs/.
const PAGES: [&str; 3] = ["findings", "recording", "symbols"];

/// The flags of scenarios/Makefile, without debug information.
const FLAGS: [&str; 5] =
    ["-std=gnu11", "-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"];

fn main() {
    let sources = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let out = PathBuf::from(variable("OUT_DIR"));
    let dispatcher = out.join("scenarios.c");
    fs::write(&dispatcher, dispatcher_source()).expect("OUT_DIR is writable");
    let mut objects = vec![compile(&dispatcher, "main", &out)];
    for scenario in SCENARIOS {
        let source = sources.join(format!("{scenario}.c"));
        println!("cargo:rerun-if-changed={}", source.display());
        objects.push(compile(&source, &format!("{scenario}_main"), &out));
    }
    println!("cargo:rerun-if-changed={}", sources.join("truth.h").display());
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=WALLPROF_SCENARIOS={}", SCENARIOS.join(","));
    let program = out.join("scenarios");
    link(&objects, &program);
    compress(&program, &out.join("scenarios.gz")).expect("OUT_DIR is writable");
    let docs = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../../docs");
    for page in PAGES {
        let markdown = docs.join(format!("{page}.md"));
        println!("cargo:rerun-if-changed={}", markdown.display());
        compress(&markdown, &out.join(format!("{page}.md.gz"))).expect("docs/ has the page");
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// The scenario is selected by the name of the program file. Its printed truth is for tests and is discarded here.
fn dispatcher_source() -> String {
    let mut source = String::from("#include <stdio.h>\n#include <string.h>\n");
    for scenario in SCENARIOS {
        source += &format!("int {scenario}_main(int argc, char **argv);\n");
    }
    source += "int main(int argc, char **argv) {\n    const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;\n";
    source += "    const char *name = slash ? slash + 1 : argc > 0 ? argv[0] : \"\";\n";
    source += "    if (!freopen(\"/dev/null\", \"w\", stdout))\n        return 1;\n";
    for scenario in SCENARIOS {
        source +=
            &format!("    if (!strcmp(name, \"{scenario}\"))\n        return {scenario}_main(argc, argv);\n");
    }
    source + "    return 2;\n}\n"
}

/// Compiles `source`; its `main` gets the name `name`.
fn compile(source: &Path, name: &str, out: &Path) -> PathBuf {
    let object = out.join(format!("{name}.o"));
    let mut command = Command::new("gcc");
    command.args(FLAGS).arg(format!("-Dmain={name}")).arg("-c").arg(source).arg("-o").arg(&object);
    run(&mut command).unwrap_or_else(|error| panic!("{} does not compile: {error}", source.display()));
    object
}

/// Links statically, so that the demo runs on every machine; dynamically if no static libc is installed.
fn link(objects: &[PathBuf], program: &Path) {
    let link = |kind: &str| {
        run(Command::new("gcc")
            .args([kind, "-pthread", "-Wl,--build-id"])
            .args(objects)
            .arg("-o")
            .arg(program))
    };
    if let Err(error) = link("-static") {
        println!("cargo:warning=`wallprof demo` will need this machine's libc: {error}");
        link("-no-pie").unwrap_or_else(|error| panic!("the scenarios do not link: {error}"));
    }
}

/// gzip writes no time by default, so that equal programs give equal bytes.
fn compress(program: &Path, compressed: &Path) -> io::Result<()> {
    let mut encoder = GzEncoder::new(File::create(compressed)?, Compression::best());
    io::copy(&mut File::open(program)?, &mut encoder)?;
    encoder.finish().map(drop)
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
        Err(error) => Err(format!("gcc (Debian package gcc) does not run: {error}")),
    }
}
