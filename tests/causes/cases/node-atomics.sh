# SPDX-License-Identifier: Apache-2.0
# A handler of HTTP that asks a worker and waits for the answer in Atomics.wait. Workers wait there for questions.
packages=nodejs
kind=blocked-loop
text='node did not return to (uv__io_poll|epoll_p?wait) .*waiting for another thread \(Atomics\.wait\)'
cause() { run_as_target node "$PROGRAMS/blocking.js" atomics block "$SECONDS_OF_RUN"; }
twin() { run_as_target node "$PROGRAMS/blocking.js" atomics wait "$SECONDS_OF_RUN"; }
