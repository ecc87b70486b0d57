# SPDX-License-Identifier: Apache-2.0
# Four threads and one connection, counted by a std::counting_semaphore.
packages=g++
kind=lock-wait
text='request-. and 3 other threads of semaphore waited for .* they held it in turn, .*sleep'
prepare() { binary=$(program semaphore.cc); }
cause() { run_as_target "$binary" few "$SECONDS_OF_RUN"; }
twin() { run_as_target "$binary" enough "$SECONDS_OF_RUN"; }
