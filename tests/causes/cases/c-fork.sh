# SPDX-License-Identifier: Apache-2.0
# A process with much memory forks, and another of its threads waits for the lock of the memory map meanwhile.
packages=gcc
kind=mmap-lock
text="engine (and another thread )?of forks waited for the lock of their process's memory map \\(page fault\\) in serve .*: forks .*in save_all.*, after it had copied the memory map for a fork"
# The child that is forked may have its CPU.
planted=mmap-lock
prepare() { binary=$(program forks.c); }
cause() { run_as_target "$binary" copied "$SECONDS_OF_RUN"; }
twin() { run_as_target "$binary" left "$SECONDS_OF_RUN"; }
target() { target_with_thread engine; }
