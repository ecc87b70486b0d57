# SPDX-License-Identifier: Apache-2.0
# The process at the other end of a TCP connection reads slowly: the send buffer is full, and the writer waits.
packages=python3
kind=network-wait
text='feed .*send buffer.*archive'
cause() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/stream.py" tcp slow "$SECONDS_OF_RUN"; }
twin() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/stream.py" tcp quick "$SECONDS_OF_RUN"; }
target() { target_with_thread feed; }
