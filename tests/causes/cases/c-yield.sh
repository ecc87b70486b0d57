# SPDX-License-Identifier: Apache-2.0
# A thread sleeps while it has a spin lock, and another one asks for the lock again and again, with sched_yield in between.
packages=gcc
kind=busy-wait
text='engine of yields asked again and again in take_spin .* with sched_yield in between'
prepare() { binary=$(program yields.c); }
cause() { run_as_target "$binary" yield held "$SECONDS_OF_RUN"; }
twin() { run_as_target "$binary" yield free "$SECONDS_OF_RUN"; }
target() { target_with_thread engine; }
