#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The speed of the page: records 400 threads for a minute, writes the page three times, opens it three times in a
# headless Chromium and drags over it. Prints milliseconds by the page's own clock. Needs root, gcc, chromium and the
# npm packages that tests/readers/run.sh puts into target/readers.
#
#   benches/page/run.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly STORE=$PWD/target/readers
readonly WALLPROF=${WALLPROF:-$PWD/target/release/wallprof}

[ -d "$STORE/node_modules" ] || { echo "there is no $STORE/node_modules: make readers" >&2; exit 1; }
gcc -std=gnu11 -O2 -fno-omit-frame-pointer -pthread benches/page/threads.c -o "$STORE/threads"
"$WALLPROF" record -o "$STORE/threads.db" -- "$STORE/threads" 60 > "$STORE/record.log" 2>&1
echo "load $(cut -d' ' -f1 /proc/loadavg), $(nproc) CPUs, recording of $(stat -c %s "$STORE/threads.db") bytes"
for _ in 1 2 3; do
    start=$(date +%s%N)
    "$WALLPROF" report "$STORE/threads.db" -o "$STORE/threads.html"
    echo "written in $((($(date +%s%N) - start) / 1000000)) ms, $(stat -c %s "$STORE/threads.html") bytes"
done
cp tests/readers/browser.mjs benches/page/speed.mjs "$STORE"
node "$STORE/speed.mjs" "$STORE/threads.html"
rm -f "$STORE"/threads.db "$STORE"/threads.html
