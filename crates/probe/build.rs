//! Compiles bpf/ to one object and generates its Rust view (maps, programs, records) into OUT_DIR.

use std::path::PathBuf;
use std::{env, fs};

use libbpf_cargo::SkeletonBuilder;

/// Named, not found: a new Debian machine has no plain `clang`.
const CLANG: &str = "clang-19";

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../bpf")
        .canonicalize()
        .unwrap_or_else(|error| panic!("bpf/ is missing beside crates/: {error}"));
    let skeleton = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("wallprof.skel.rs");
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "arm64",
        _ => "x86",
    };
    SkeletonBuilder::new()
        .source(root.join("wallprof.bpf.c"))
        .clang(CLANG)
        .clang_args([
            "-mcpu=v3".to_string(),
            "-Wall".into(),
            "-Wextra".into(),
            "-Werror".into(),
            "-Wno-unused-parameter".into(),
            "-Wno-missing-declarations".into(),
            format!("-D__TARGET_ARCH_{arch}"),
            // The kernel is told the source lines of each program: not where they lay on the machine that built it.
            format!("-ffile-prefix-map={}=bpf", root.display()),
        ])
        .build_and_generate(&skeleton)
        .unwrap_or_else(|error| {
            panic!("bpf/ does not compile with {CLANG} (Debian package {CLANG}): {error:?}")
        });
    fs::write(
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("constants.rs"),
        constants(&root),
    )
    .expect("OUT_DIR is writable");
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

/// The enumerators and plain `#define NAME number` of the shared headers, as Rust constants: they are not in the
/// object's type information unless a record uses them.
fn constants(root: &std::path::Path) -> String {
    let mut out = String::new();
    for header in [
        "include/limits.h",
        "include/records.h",
        "include/unwind.h",
        "include/vectors.h",
        "include/syscalls.h",
    ] {
        let text =
            fs::read_to_string(root.join(header)).unwrap_or_else(|error| panic!("bpf/{header}: {error}"));
        for (name, value) in text.lines().filter_map(constant_from_line) {
            out += &format!("pub const {name}: u64 = {value};\n");
        }
        for line in text.lines().filter(|line| line.trim_start().starts_with("X(")) {
            let inside = line.trim_start().trim_start_matches("X(").split(')').next().unwrap_or_default();
            if let Some((number, name)) = inside.split_once(", ") {
                out += &format!("pub const VECTOR_{number}_NAME: &str = \"{name}\";\n");
            }
        }
    }
    out
}

fn constant_from_line(line: &str) -> Option<(&str, u64)> {
    let line = line.trim();
    let (name, value) = match line.strip_prefix("#define ") {
        Some(rest) => rest.split_once(' ')?,
        None => line.split_once(" = ")?,
    };
    let value = value.trim().split([',', ' ']).next()?.trim_end_matches("ULL");
    let upper = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    upper.then_some((name, value.parse().ok()?))
}
