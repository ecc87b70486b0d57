// SPDX-License-Identifier: Apache-2.0
//! The kernel side's bucket index, compiled for the host, against the model's.

use std::fs;
use std::path::Path;
use std::process::Command;

use wallprof_model::histogram::bucket_from_ns;

const PROGRAM: &str = r#"
#include <stdio.h>
#include "include/histogram.h"
int main(void) {
    unsigned long long ns;
    while (scanf("%llu", &ns) == 1)
        printf("%u\n", bucket_from_ns(ns));
    return 0;
}
"#;

/// Every power of two with its neighbours, and a spread over all magnitudes.
fn values() -> Vec<u64> {
    let edges = (0..64).flat_map(|bit| {
        let power = 1u64 << bit;
        [power.wrapping_sub(1), power, power.wrapping_add(1), power | power >> 3]
    });
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let spread = (0..20_000).map(move |index| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> (index % 64)
    });
    edges.chain(spread).chain(0..4_096).collect()
}

#[test]
fn both_sides_count_into_the_same_bucket() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program, input) =
        (folder.join("bucket.c"), folder.join("bucket"), folder.join("bucket.txt"));
    fs::write(&source, PROGRAM).expect("the test's folder is writable");
    let bpf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    let compiled = Command::new("cc").arg("-I").arg(bpf).arg("-o").arg(&program).arg(&source).status();
    assert!(compiled.expect("cc runs").success());
    let values = values();
    let text: String = values.iter().map(|value| format!("{value}\n")).collect();
    fs::write(&input, text).expect("the test's folder is writable");
    let answer = Command::new(&program).stdin(fs::File::open(&input).expect("just written")).output();
    let answer = String::from_utf8(answer.expect("the program runs").stdout).expect("numbers");
    let buckets: Vec<u16> = answer.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(buckets.len(), values.len());
    for (value, bucket) in values.into_iter().zip(buckets) {
        assert_eq!(bucket, bucket_from_ns(value), "{value} ns");
    }
}
