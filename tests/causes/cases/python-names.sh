# SPDX-License-Identifier: Apache-2.0
# As python-asyncio, with names of Python's functions, where it is 3.12 or newer and writes them.
packages=python3
kind=blocked-loop
text='python3 did not return to epoll_wait .*sleep'
options=()
if "$DEBIAN_PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2> /dev/null; then
    options=(-X perf)
    text='python3 did not return to epoll_wait .*asleep in coroutines.resize_images, inside coroutines.resize_image'
fi
cause() { run_as_target "$DEBIAN_PYTHON" "${options[@]}" "$PROGRAMS/coroutines.py" blocking "$SECONDS_OF_RUN"; }
twin() { run_as_target "$DEBIAN_PYTHON" "${options[@]}" "$PROGRAMS/coroutines.py" awaiting "$SECONDS_OF_RUN"; }
