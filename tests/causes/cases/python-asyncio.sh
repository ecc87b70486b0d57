# SPDX-License-Identifier: Apache-2.0
# time.sleep in a coroutine: the event loop stands still.
packages=python3
kind=blocked-loop
text='python3 did not return to epoll_wait .*clock_nanosleep|python3 did not return to epoll_wait .*sleep'
cause() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/coroutines.py" blocking "$SECONDS_OF_RUN"; }
twin() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/coroutines.py" awaiting "$SECONDS_OF_RUN"; }
