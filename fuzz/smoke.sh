#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes all targets one after the other from their seeds, for two minutes in all, with stable Rust. It needs
# neither cargo-fuzz nor a memory sanitizer: the fuzzed code has no unsafe code. A finding is a failure; its
# input stays in fuzz/artifacts.
#
# usage: fuzz/smoke.sh [SECONDS]      SECONDS for all targets together, 105 by default
#
# For longer runs with sanitizers, see the command in fuzz/Cargo.toml.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-105}
# The instrumentation that guides libFuzzer: counters of edges and traces of compared values.
flags='--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1'
triple=$(rustc -vV | sed -n 's/^host: //p')
built=target/$triple/release

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# libFuzzer is written in C++. Without a compiler for it, fuzzing is skipped.
if ! echo '#include <vector>' | c++ -x c++ -fsyntax-only - 2>/dev/null; then
    echo 'fuzz-smoke skipped: there is no C++ compiler (Debian package g++) to build libFuzzer with'
    exit 0
fi
if ! cargo fetch --locked --target "$triple" 2>"$scratch/output"; then
    # The network is not the cause: a dependency of the workspace has changed.
    if grep -q -e --locked "$scratch/output"; then
        echo 'fuzz-smoke: fuzz/Cargo.lock is not up to date: run `cargo update --workspace` in fuzz/' >&2
        exit 1
    fi
    echo "fuzz-smoke skipped: its dependencies cannot be fetched here: $(tail -1 "$scratch/output" | xargs)"
    exit 0
fi
RUSTFLAGS=$(xargs <<<"$flags") CARGO_TARGET_DIR=target cargo build --release --locked --target "$triple"

mapfile -t targets < <(awk -F'"' '$1 == "[[bin]]" { bin = 1 }
    bin && $1 == "name = " { print $2; bin = 0 }' Cargo.toml)
each=$((seconds / ${#targets[@]}))
mkdir -p artifacts
for name in "${targets[@]}"; do
    mkdir "$scratch/$name"
    echo "$name: $each s from $(find "seeds/$name" -type f | wc -l) seeds"
    # The fixed seed gives every run the same inputs, as many as the time allows. An input that takes two
    # minutes counts as a hang: on a machine with other load, an input of 0.1 s took 17 s.
    "$built/$name" -seed=1 -max_total_time="$((each > 0 ? each : 1))" -timeout=120 \
        -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="artifacts/$name-" "$scratch/$name" "seeds/$name" >"$scratch/output" 2>&1 || {
        tail -40 "$scratch/output" >&2
        echo "fuzz-smoke: $name found something; its input is in fuzz/artifacts: run fuzz/$built/$name with it" >&2
        exit 1
    }
    grep -E 'number_of_executed_units|average_exec_per_sec' "$scratch/output" | sed 's/^stat::/  /'
done
