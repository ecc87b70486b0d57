# SPDX-License-Identifier: Apache-2.0
# spawnSync in a handler of HTTP: Node.js waits for the child in a loop of its own, inside of the callback.
packages=nodejs
kind=blocked-loop
text='node did not return to (uv__io_poll|epoll_p?wait) .*waiting for a child process in the binding node::SyncProcessRunner::Spawn\.'
cause() { run_as_target node "$PROGRAMS/blocking.js" spawn block "$SECONDS_OF_RUN"; }
twin() { run_as_target node "$PROGRAMS/blocking.js" spawn wait "$SECONDS_OF_RUN"; }
