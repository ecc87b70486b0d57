# SPDX-License-Identifier: Apache-2.0
# A client with a timeout waits in poll for the answers of a slow process, and pauses between its questions.
packages=python3
kind=network-wait
text='shop waited for an answer of prices [0-9]+ \(127\.0\.0\.1'
cause() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/ask.py" slow "$SECONDS_OF_RUN"; }
twin() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/ask.py" quick "$SECONDS_OF_RUN"; }
target() { target_with_thread shop; }
