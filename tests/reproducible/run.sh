#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks that the release has the same bytes in each folder: builds the last commit in two clones, in folders
# of different depth and length, and compares.
#
# usage: tests/reproducible/run.sh
#
# Compiler, clang and C libraries are those of this machine: only the influence of folders is checked.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly PROJECT=$PWD

build() { # FOLDER
    git clone -q "$PROJECT" "$1"
    env -u CARGO_TARGET_DIR -u RUSTFLAGS make -s -C "$1" release
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
build "$scratch/a"
build "$scratch/another/folder/that-is-deeper"
mv "$scratch/a/target/release/wallprof" "$scratch/one"
mv "$scratch/another/folder/that-is-deeper/target/release/wallprof" "$scratch/other"
sha256sum "$scratch/one" "$scratch/other" | sed "s|$scratch/||"
cmp "$scratch/one" "$scratch/other" || {
    echo "reproducible: two folders give two programs; the first bytes that differ are above" >&2
    exit 1
}
echo "reproducible: both folders give the same $(stat -c %s "$scratch/one") bytes"
