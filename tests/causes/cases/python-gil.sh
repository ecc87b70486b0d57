# SPDX-License-Identifier: Apache-2.0
# A thread with short requests beside one that computes: it waits 5 ms for the GIL each time.
packages=python3
kind=lock-wait
text='requests.* waited for GIL .* PyEval_RestoreThread.* (report held it|they held it in turn)'
cause() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/gil.py" busy "$SECONDS_OF_RUN"; }
twin() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/gil.py" alone "$SECONDS_OF_RUN"; }
