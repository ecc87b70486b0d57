#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs wallprof with cargo from this checkout, as the README says, into a temporary folder; asks the installed
# program for its version, runs its demo, and removes it.
#
#   tests/install/run.sh
#
# The demo records: root, or sudo. The crates are compiled in target/install, so that a release stays as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { echo "install: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

# As root: what the demo writes is root's.
as_root() { if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi; }

folder=$(mktemp -d)
trap 'as_root rm -rf "$folder"' EXIT
env -u RUSTFLAGS CARGO_TARGET_DIR="$PWD/target/install" cargo install --locked --path crates/wallprof --root "$folder"

wanted="wallprof $(cargo metadata --locked --no-deps --format-version 1 |
    grep -o '"name":"wallprof","version":"[^"]*"' | cut -d'"' -f8)"
[[ $("$folder/bin/wallprof" --version) == "$wanted" ]] ||
    fail "it is not $wanted: $("$folder/bin/wallprof" --version)"
as_root "$folder/bin/wallprof" demo lock -o "$folder/demo.db" > "$folder/demo" || fail "the demo: $(cat "$folder/demo")"
grep -q 'lock-wait' "$folder/demo" || fail "the demo finds no lock: $(cat "$folder/demo")"
cargo uninstall --quiet --root "$folder" wallprof
[[ ! -e $folder/bin/wallprof ]] || fail 'cargo uninstall leaves the program'
say "cargo installs $wanted, its demo finds the lock, and cargo uninstall removes it"
