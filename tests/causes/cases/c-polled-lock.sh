# SPDX-License-Identifier: Apache-2.0
# As c-yield, where the thread sleeps for 50 us before it asks again.
packages=gcc
kind='lock-wait|short-waits'
text='engine of yields waited for a polled lock in take_spin_lock'
prepare() { binary=$(program yields.c); }
cause() { run_as_target "$binary" sleep held "$SECONDS_OF_RUN"; }
twin() { run_as_target "$binary" sleep free "$SECONDS_OF_RUN"; }
target() { target_with_thread engine; }
