# SPDX-License-Identifier: Apache-2.0
# Memory that is given back after each piece of work, and touched for the first time in the next.
packages=gcc
kind=page-faults
text='fresh lost some .* to page faults in fill_block \(called by main\)'
prepare() { binary=$(program fresh.c); }
cause() { run_as_target "$binary" given "$SECONDS_OF_RUN"; }
twin() { run_as_target "$binary" kept "$SECONDS_OF_RUN"; }
