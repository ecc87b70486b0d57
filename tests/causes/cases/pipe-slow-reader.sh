# SPDX-License-Identifier: Apache-2.0
# The process at the other end of a pipe reads slowly: the writer waits until the pipe has space.
packages=python3
kind=pipe-wait
text='feed .*(write|pipe).*archive'
cause() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/stream.py" pipe slow "$SECONDS_OF_RUN"; }
twin() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/stream.py" pipe quick "$SECONDS_OF_RUN"; }
target() { target_with_thread feed; }
