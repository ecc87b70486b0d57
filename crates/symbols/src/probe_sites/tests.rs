// SPDX-License-Identifier: Apache-2.0
//! Compiled programs, whose places are compared with what `objdump` and `readelf` print.
//!
//! In these programs an ELF virtual address of code is also its offset in the file, as GNU ld lays out
//! position-independent programs. Data is compared by its contents.

use std::path::Path;

use proptest::prelude::*;

use super::fixture::{Program, options_with};
use super::*;

/// `many` has returns, tail calls and a cold part, which ends in a tail call as well.
const FUNCTIONS: &str = "
#include <stdio.h>
volatile int sink;
__attribute__((noinline)) int other(int n) { sink += n; return sink; }
__attribute__((noinline, cold)) int rare(int n) { sink -= n; return sink; }
__attribute__((noinline)) int many(int n) {
    if (n == 1) { sink = 3; return 7; }
    if (__builtin_expect(sink < 0, 0)) { sink = 1; rare(n); return rare(n + 1); }
    if (n < 100) { sink += n; return other(n) + 2; }
    return other(n + 1);
}
__attribute__((noinline)) static int hidden(int n) { sink += n; return other(n) * 3; }
__attribute__((noinline)) int alias_target(int n) { sink += n; return other(n) * 5; }
int alias(int n) __attribute__((alias(\"alias_target\")));
__attribute__((noinline)) void forever(void) { for (;;) sink++; }
static int chosen(int n) { return sink + n; }
static void *choose(void) { return (void *)chosen; }
int indirect(int n) __attribute__((ifunc(\"choose\")));
int main(int count, char **arguments) {
    if (count > 50) forever();
    puts(\"text\");
    return many(count) + hidden(count) + alias_target(count) + indirect(count);
}
";

const TWICE: [&str; 2] = [
    "volatile int sink; __attribute__((noinline)) static int twice(int n) { sink += n; return sink; }
     int other(int); int main(int count, char **a) { return twice(count) + other(count); }",
    "extern volatile int sink; __attribute__((noinline)) static int twice(int n) { sink -= n; return sink; }
     int other(int n) { return twice(n) + 2; }",
];

const CPLUSPLUS: &str = "
volatile int sink;
namespace shop {
struct Cart { virtual int total(int n); int total(char n); virtual ~Cart() {} };
__attribute__((noinline)) int Cart::total(int n) { sink += n; return sink; }
__attribute__((noinline)) int Cart::total(char n) { sink -= n; return sink; }
template <typename T> __attribute__((noinline)) T twice(T n) { sink += 1; return n + n; }
__attribute__((noinline)) int only(int n, Cart &cart) { sink++; return cart.total(n) + 1; }
__attribute__((noinline)) int handed(int n, Cart &cart) { sink++; return cart.total(n); }
}
int main(int count, char **a) { shop::Cart cart; return cart.total('a') + shop::twice(count) + only(count, cart) + handed(count, cart); }
";

/// Probes as `sys/sdt.h` writes them. The values of the semaphores tell them apart.
const PROBES: &str = r#"
#define NOTE(provider, name, semaphore) __asm__ volatile ( \
    "990: nop\n" \
    ".pushsection .note.stapsdt,\"?\",\"note\"\n" \
    ".balign 4\n" \
    ".4byte 992f-991f, 994f-993f, 3\n" \
    "991: .asciz \"stapsdt\"\n" \
    "992: .balign 4\n" \
    "993: .8byte 990b, _.stapsdt.base, " semaphore "\n" \
    ".asciz \"" provider "\", \"" name "\", \"-4@%eax\"\n" \
    "994: .balign 4\n" \
    ".popsection\n" \
    ".ifndef _.stapsdt.base\n" \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
    ".weak _.stapsdt.base\n" \
    ".hidden _.stapsdt.base\n" \
    "_.stapsdt.base: .space 1\n" \
    ".size _.stapsdt.base, 1\n" \
    ".popsection\n" \
    ".endif\n")
#define SEMAPHORE __attribute__((section(".probes"), visibility("hidden"), used))
SEMAPHORE unsigned short app_begin_semaphore = 0x5a17;
SEMAPHORE unsigned short app_end_semaphore = 0x5a18;
volatile int sink;
__attribute__((noinline)) int work(int n) {
    NOTE("app", "begin", "app_begin_semaphore");
    if (n > 3) { NOTE("app", "end", "app_end_semaphore"); return sink; }
    sink += n;
    NOTE("app", "end", "app_end_semaphore");
    NOTE("app", "plain", "0");
    return n;
}
int main(int count, char **arguments) { return work(count); }
"#;

fn sites_in(path: &Path, function: &str) -> Result<ProbeSites, ProbeSitesError> {
    let target = SpanTarget::Uprobe { path: path.into(), function: function.into() };
    probe_sites_with(&target, &options_with(None))
}

fn sites(program: &Program, function: &str) -> ProbeSites {
    sites_in(&program.path, function).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(path: &Path, function: &str) -> (SiteProblem, String) {
    let error = sites_in(path, function).expect_err(function);
    let sentence = error.to_string();
    assert!(sentence.starts_with(&*path.to_string_lossy()) || sentence.contains(function), "{sentence}");
    assert!(!sentence.contains(char::is_control) && !sentence.ends_with('.'), "{sentence}");
    (error.problem, sentence)
}

fn offsets(sites: &[ProbeSite]) -> Vec<u64> {
    sites.iter().map(|site| site.offset).collect()
}

/// The ends by the listing of `objdump`.
fn listed_ends(program: &Program, symbols: &[&str]) -> Vec<u64> {
    let lines = symbols.iter().flat_map(|symbol| program.code_of(symbol));
    let mut ends: Vec<u64> =
        lines.filter(|line| line.is_return() || line.leaves(symbols)).map(|line| line.address).collect();
    ends.sort_unstable();
    ends
}

#[test]
fn ends_of_functions_are_those_that_objdump_lists() {
    let program = Program::compile("c", &[FUNCTIONS], &[]);
    for (function, symbols) in [
        ("many", &["many", "many.cold"][..]),
        ("hidden", &["hidden"]),
        ("alias_target", &["alias"]),
        ("main", &["main"]),
        ("chosen", &["chosen"]),
    ] {
        let found = sites(&program, function);
        assert_eq!(offsets(&found.begins), [program.address_of(symbols[0])], "{function}");
        assert_eq!(offsets(&found.ends), listed_ends(&program, symbols), "{function}");
        assert_eq!(found.unclear_ends, [], "{function}");
    }
    let cold = program.code_of("many.cold");
    let cold = cold.first().expect("a cold part").address..=cold.last().expect("a cold part").address;
    let ends = offsets(&sites(&program, "many").ends);
    assert!(ends.len() >= 4 && ends.iter().any(|end| cold.contains(end)), "{ends:x?}");
    let metadata = program.path.metadata().expect("metadata");
    let file = FileIdentity { device: metadata.dev(), inode: metadata.ino() };
    assert_eq!(sites(&program, "many").file, file);
}

#[test]
fn function_of_a_stripped_program_is_found_by_its_debug_file() {
    let program = Program::compile("c", &[FUNCTIONS], &["-rdynamic", "-Wl,--build-id"]);
    let stripped = program.copy("stripped", &["--strip-all"]);
    let exported = sites_in(&stripped, "other").expect("an exported function");
    assert_eq!((exported.begins, exported.ends), {
        let whole = sites(&program, "other");
        (whole.begins, whole.ends)
    });
    let (problem, sentence) = refusal(&stripped, "hidden");
    assert!(matches!(problem, SiteProblem::NoFunctionStripped { .. }), "{problem:?}");
    assert!(sentence.contains("is stripped") && sentence.contains("debug symbols"), "{sentence}");

    let build_id = crate::build_id_of_path(&program.path).expect("a build id");
    let by_id = crate::debug_file::build_id_path(&build_id).expect("a long build id");
    let debug = program.folder.path().join("debug/.build-id").join(by_id + ".debug");
    std::fs::create_dir_all(debug.parent().expect("a folder")).expect("created");
    std::fs::rename(program.copy("symbols", &["--only-keep-debug"]), &debug).expect("moved");
    for function in ["hidden", "many"] {
        let target = SpanTarget::Uprobe { path: stripped.clone(), function: function.into() };
        let options = options_with(Some(&program.folder.path().join("debug")));
        let found = probe_sites_with(&target, &options).unwrap_or_else(|error| panic!("{error}"));
        let whole = sites(&program, function);
        assert_eq!((found.begins, found.ends), (whole.begins, whole.ends), "{function}");
    }
}

#[test]
fn function_without_places_is_refused_with_its_reason() {
    let program = Program::compile("c", &[FUNCTIONS], &[]);
    let (problem, sentence) = refusal(&program.path, "man");
    assert!(matches!(problem, SiteProblem::NoFunction { .. }), "{problem:?}");
    assert!(sentence.contains("alike: ") && sentence.contains("many"), "{sentence}");
    let (problem, _) = refusal(&program.path, "nowhere_at_all");
    assert!(matches!(&problem, SiteProblem::NoFunction { known } if known.is_empty()), "{problem:?}");
    let (problem, _) = refusal(&program.path, "forever");
    assert!(matches!(problem, SiteProblem::NoEnd), "{problem:?}");
    let (problem, _) = refusal(&program.path, "indirect");
    assert!(matches!(problem, SiteProblem::IndirectFunction), "{problem:?}");
    let (problem, _) = refusal(&program.path, "puts");
    assert!(matches!(problem, SiteProblem::ImportedFunction), "{problem:?}");
}

#[test]
fn file_without_code_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("file");
    let (problem, _) = refusal(&path, "f");
    assert!(matches!(problem, SiteProblem::Unreadable(_)), "{problem:?}");
    std::fs::write(&path, "#!/bin/sh\n").expect("written");
    let (problem, _) = refusal(&path, "f");
    assert!(matches!(problem, SiteProblem::NotElf), "{problem:?}");
    let own = std::fs::read("/proc/self/exe").expect("this program");
    for (at, value) in [(4, 1), (5, 2), (18, 0xb7)] {
        let mut foreign = own[..64].to_vec();
        foreign[at] = value;
        foreign[40..48].fill(0);
        std::fs::write(&path, &foreign).expect("written");
        let (problem, _) = refusal(&path, "f");
        assert!(matches!(problem, SiteProblem::ForeignElf), "byte {at}: {problem:?}");
    }
    std::fs::write(&path, &own[..1000]).expect("written");
    let (problem, _) = refusal(&path, "f");
    assert!(matches!(problem, SiteProblem::DamagedHeaders), "{problem:?}");
}

#[test]
fn one_of_several_functions_is_chosen_by_its_address() {
    let program = Program::compile("c", &TWICE, &["-fno-lto"]);
    let (problem, sentence) = refusal(&program.path, "twice");
    let SiteProblem::SeveralFunctions { found } = problem else { panic!("{problem:?}") };
    assert_eq!(found.len(), 2);
    for (address, symbol) in found {
        assert_eq!(symbol, "twice");
        let text = format!("{address:#x}");
        assert!(sentence.contains(&text), "{sentence}");
        assert_eq!(offsets(&sites(&program, &text).begins), [address]);
    }
}

#[test]
fn function_of_cplusplus_is_found_by_its_readable_name() {
    let program = Program::compile("cc", &[CPLUSPLUS], &[]);
    let names = [
        ("_ZN4shop4Cart5totalEc", "_ZN4shop4Cart5totalEc"),
        ("shop::Cart::total(char)", "_ZN4shop4Cart5totalEc"),
        ("shop::twice<int>", "_ZN4shop5twiceIiEET_S1_"),
        ("shop::only", "_ZN4shop4onlyEiRNS_4CartE"),
    ];
    for (name, symbol) in names {
        let found = sites(&program, name);
        assert_eq!(offsets(&found.begins), [program.address_of(symbol)], "{name}");
    }
    // It ends in a call by the table of virtual functions only.
    let (problem, _) = refusal(&program.path, "shop::handed");
    assert!(matches!(problem, SiteProblem::OnlyUnclearEnds), "{problem:?}");
    let (problem, sentence) = refusal(&program.path, "shop::Cart::total");
    assert!(matches!(&problem, SiteProblem::SeveralFunctions { found } if found.len() == 2), "{problem:?}");
    assert!(sentence.contains("_ZN4shop4Cart5totalEc"), "{sentence}");
}

/// A probe as `readelf -n` prints it.
fn listed_probes(program: &Program, name: &str) -> Vec<u64> {
    let listing = program.output_of("readelf", &["-nW"]);
    let mut places = Vec::new();
    let mut is_named = false;
    for line in listing.lines().map(str::trim) {
        if let Some(found) = line.strip_prefix("Name: ") {
            is_named = found == name;
        } else if let Some(rest) = line.strip_prefix("Location: 0x").filter(|_| is_named) {
            let location = rest.split(',').next().expect("a location");
            places.push(u64::from_str_radix(location, 16).expect("an address"));
        }
    }
    places.sort_unstable();
    places
}

#[test]
fn places_of_probes_are_those_that_readelf_lists() {
    for arguments in [&["-pie", "-fPIE"][..], &["-shared", "-fPIC"]] {
        let program = Program::compile("c", &[PROBES], arguments);
        let bytes = std::fs::read(&program.path).expect("the program");
        let found = |begin: &str, end: &str| {
            let text = format!("usdt:{}:app:{begin}..{end}", program.path.display());
            let target: SpanTarget = text.parse().expect("a target");
            probe_sites(&target).unwrap_or_else(|error| panic!("{error}"))
        };
        let ProbeSites { begins, ends, .. } = found("begin", "end");
        assert_eq!(offsets(&begins), listed_probes(&program, "begin"));
        assert_eq!(offsets(&ends), listed_probes(&program, "end"));
        assert_eq!((begins.len(), ends.len()), (1, 2), "{arguments:?}");
        let counter = |site: &ProbeSite| {
            let at = site.semaphore.expect("a semaphore") as usize;
            u16::from_le_bytes([bytes[at], bytes[at + 1]])
        };
        assert_eq!(counter(&begins[0]), 0x5a17);
        assert!(ends.iter().all(|site| counter(site) == 0x5a18), "{ends:?}");
        let plain = found("plain", "begin").begins;
        assert_eq!((offsets(&plain), plain[0].semaphore), (listed_probes(&program, "plain"), None));
        let all = [begins, ends, plain].concat();
        assert!(all.iter().all(|site| bytes[site.offset as usize] == 0x90), "{all:x?}");
    }
}

#[test]
fn unknown_probe_is_refused_with_known_ones() {
    let refusal = |path: &Path, provider: &str, begin: &str| {
        let [provider, begin] = [provider, begin].map(str::to_owned);
        let target = SpanTarget::Usdt { path: path.into(), provider, begin, end: "end".into() };
        probe_sites(&target).expect_err("refused").to_string()
    };
    let program = Program::compile("c", &[PROBES], &[]);
    assert!(
        refusal(&program.path, "app", "begun")
            .ends_with("has no probe 'begun'; its nearest ones are begin, end, plain")
    );
    assert!(refusal(&program.path, "apt", "begin").ends_with("give one of these: app"));
    let without = Program::compile("c", &TWICE, &[]);
    assert!(refusal(&without.path, "app", "begin").contains("has no USDT probes"));
}

#[test]
fn damaged_program_is_harmless() {
    let program = Program::compile("c", &[PROBES], &[]);
    let whole = std::fs::read(&program.path).expect("the program");
    let copy = program.folder.path().join("damaged");
    let places = |bytes: &[u8]| {
        std::fs::write(&copy, bytes).expect("written");
        let probes = format!("usdt:{}:app:begin..end", copy.display());
        let found = probe_sites_with(&probes.parse().expect("a target"), &options_with(None));
        (found, sites_in(&copy, "work"))
    };
    let (probes, function) = places(&whole);
    assert!(probes.is_ok() && function.is_ok(), "{probes:?} {function:?}");
    for len in (0..whole.len()).step_by(whole.len() / 50) {
        let (probes, function) = places(&whole[..len]);
        assert!(probes.is_err() && function.is_err(), "cut to {len} bytes");
    }
    let headers = whole.len() - 3000..whole.len();
    let places_of_damage = prop_oneof![0..1024usize, headers, 0..whole.len()];
    let damage = proptest::collection::vec((places_of_damage, any::<u8>()), 1..12);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let result = runner.run(&damage, |damage| {
        let mut bytes = whole.clone();
        for (at, value) in damage {
            bytes[at] = value;
        }
        let _ = places(&bytes);
        Ok(())
    });
    result.expect("no damage makes it panic");
}
