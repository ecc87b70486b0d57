# SPDX-License-Identifier: Apache-2.0
# A reader keeps a std::shared_mutex for 20 ms: the writer waits.
packages=g++
kind=lock-wait
text='feed of rwlock waited for a lock in update_price .*report (held it|released it)'
prepare() { binary=$(program rwlock.cc); }
cause() { run_as_target "$binary" slow "$SECONDS_OF_RUN"; }
twin() { run_as_target "$binary" quick "$SECONDS_OF_RUN"; }
