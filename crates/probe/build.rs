// SPDX-License-Identifier: Apache-2.0
//! Compiles bpf/ to one object and generates its Rust view (maps, programs, records) into OUT_DIR.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use libbpf_cargo::SkeletonBuilder;

/// The name has a version: a new Debian machine has no plain `clang`.
const CLANG: &str = "clang-19";

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../bpf")
        .canonicalize()
        .unwrap_or_else(|error| panic!("bpf/ is missing beside crates/: {error}"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let (object, skeleton) = (out.join("wallprof.o"), out.join("wallprof.skel.rs"));
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "arm64",
        _ => "x86",
    };
    let mut builder = SkeletonBuilder::new();
    builder
        .source(root.join("wallprof.bpf.c"))
        .obj(&object)
        .reference_obj(true)
        .clang(CLANG)
        .clang_args([
            "-mcpu=v3".to_string(),
            "-Wall".into(),
            "-Wextra".into(),
            "-Werror".into(),
            "-Wno-unused-parameter".into(),
            "-Wno-missing-declarations".into(),
            format!("-D__TARGET_ARCH_{arch}"),
            // The object contains the source lines of each program, but no path of the machine that builds
            // it.
            format!("-ffile-prefix-map={}=bpf", root.display()),
        ])
        .build()
        .unwrap_or_else(|error| {
            panic!("bpf/ does not compile with {CLANG} (Debian package {CLANG}): {error:?}")
        });
    builder.generate(&skeleton).unwrap_or_else(|error| {
        panic!("the Rust side of bpf/ is not written: rustfmt is needed (rustup component add rustfmt): {error:?}")
    });
    let generated = fs::read_to_string(&skeleton).expect("the skeleton was just written");
    fs::write(&skeleton, with_compressed_object(&generated)).expect("OUT_DIR is writable");
    fs::write(out.join("wallprof.o.gz"), compressed(&object)).expect("OUT_DIR is writable");
    fs::write(out.join("constants.rs"), constants(&root, &out)).expect("OUT_DIR is writable");
    // libbpf's headers, which libbpf-sys unpacks, for tests.
    let headers = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys says where its headers are");
    println!("cargo:rustc-env=LIBBPF_HEADERS={headers}");
    for folder in [root.clone(), root.join("include")] {
        println!("cargo:rerun-if-changed={}", folder.display());
        for file in fs::read_dir(&folder).into_iter().flatten().flatten() {
            println!("cargo:rerun-if-changed={}", file.path().display());
        }
    }
}

/// The skeleton without the bytes of the object, which `bpf.rs` unpacks: they would be a fortieth of the
/// program.
fn with_compressed_object(skeleton: &str) -> String {
    let (before, rest) =
        skeleton.split_once("#[unsafe(link_section = \".bpf.objs\")]").expect("a skeleton has its object");
    let (_, after) = rest.split_once(");").expect("a statement has an end");
    let (start, end) = before.split_once("&DATA").expect("a skeleton opens its object");
    format!("{start}crate::bpf::object(){end}{after}")
}

fn compressed(object: &Path) -> Vec<u8> {
    let bytes = fs::read(object).expect("the object was just compiled");
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&bytes).and_then(|()| encoder.finish()).expect("memory takes all")
}

/// The headers whose constants user space shares. They include no system headers.
const SHARED: [&str; 6] = ["limits.h", "reasons.h", "records.h", "syscalls.h", "unwind.h", "vectors.h"];

/// The enumerators and the `#define NAME value` of the shared headers as Rust constants. The compiler
/// evaluates them: they are not in the object's type information unless a record uses them.
fn constants(root: &Path, out: &Path) -> String {
    let includes: String =
        SHARED.iter().map(|header| format!("#include \"{}/include/{header}\"\n", root.display())).collect();
    let source = out.join("constants.c");
    let run = |text: &str, arguments: &[&str]| {
        fs::write(&source, format!("{includes}{text}")).expect("OUT_DIR is writable");
        clang(&source, arguments)
    };
    let mut names = names_from_macros(&run("", &["-E", "-dM"]));
    names.extend(names_from_enums(&run("", &["-E", "-P"])));
    let globals: String =
        names.iter().map(|name| format!("unsigned long long constant_{name} = {name};\n")).collect();
    let evaluated = run(&globals, &["-S", "-emit-llvm", "-Xclang", "-disable-llvm-passes", "-o", "-"]);
    let mut rust: String = evaluated.lines().filter_map(constant_from_global).collect();
    let vectors = run("#define VECTOR(number, name) vector #name\nFOR_EACH_VECTOR(VECTOR)", &["-E", "-P"]);
    let vectors: Vec<&str> =
        vectors.split("vector \"").skip(1).filter_map(|text| text.split('"').next()).collect();
    rust += &format!("pub const VECTOR_NAMES: [&str; {}] = {vectors:?};\n", vectors.len());
    rust
}

fn clang(source: &Path, arguments: &[&str]) -> String {
    let answer = Command::new(CLANG).args(["-target", "bpf"]).args(arguments).arg(source).output();
    let answer = answer.unwrap_or_else(|error| panic!("{CLANG} (Debian package {CLANG}): {error}"));
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    String::from_utf8(answer.stdout).expect("C is text")
}

fn is_constant_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Macros without parameters that have a value.
fn names_from_macros(defines: &str) -> Vec<String> {
    let words = defines.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    words
        .filter(|(name, value)| is_constant_name(name) && !value.is_empty())
        .map(|(name, _)| name.into())
        .collect()
}

/// The enumerators of preprocessed text.
fn names_from_enums(text: &str) -> Vec<String> {
    let bodies = text.split("enum ").skip(1).filter_map(|rest| rest.split_once('{')?.1.split('}').next());
    let names = bodies.flat_map(|body| body.split(',')).filter_map(|item| item.split('=').next());
    names.map(str::trim).filter(|name| is_constant_name(name)).map(String::from).collect()
}

/// `@constant_NAME = … global i64 VALUE, align 8`: LLVM writes the value as a signed number.
fn constant_from_global(line: &str) -> Option<String> {
    let (name, rest) = line.strip_prefix("@constant_")?.split_once(" = ")?;
    let value = rest.split_once("global i64 ")?.1.split(',').next()?;
    let value: i64 = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
    Some(format!("pub const {name}: u64 = {};\n", value as u64))
}
