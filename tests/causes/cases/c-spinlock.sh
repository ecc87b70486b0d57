# SPDX-License-Identifier: Apache-2.0
# A lock on which threads spin, on one CPU: its holder loses the CPU to those that spin for it.
packages=gcc
kind=preempted
text='spinner-.* of spin lost the CPU .*the CPU was with spinner-'
prepare() { binary=$(program spin.c); }
cause() { run_as_target "$binary" shared "$SECONDS_OF_RUN"; }
twin() { run_as_target "$binary" apart "$SECONDS_OF_RUN"; }
