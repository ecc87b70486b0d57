# SPDX-License-Identifier: Apache-2.0
# A thread waits again and again for a result of another one, which needs 8 ms for each.
packages=g++
kind=lock-wait
text='web of future waited for a future in ask_renderer .*: renderer ended it in .*, while renderer was mostly in sleep in read_slowly'
prepare() { binary=$(program future.cc); }
cause() { run_as_target "$binary" slow "$SECONDS_OF_RUN"; }
twin() { run_as_target "$binary" quick "$SECONDS_OF_RUN"; }
target() { target_with_thread web; }
