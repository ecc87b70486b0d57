# SPDX-License-Identifier: Apache-2.0
# An engine waits for space in the queue of its asynchronous logger.
packages="g++ libspdlog-dev"
kind=lock-wait
text='engine( of logger)? waited for space in a queue in take_order.*: writer ended it.*while writer was mostly in sleep in write_line'
prepare() { binary=$(program logger.cc -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL -lspdlog -lfmt); }
cause() { run_as_target "$binary" slow "$SECONDS_OF_RUN"; }
twin() { run_as_target "$binary" quick "$SECONDS_OF_RUN"; }
target() { target_with_thread engine; }
