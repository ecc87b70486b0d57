# SPDX-License-Identifier: Apache-2.0
# A bounded multiprocessing.Queue whose consumers are slow: the producer waits for space. In the twin the consumers wait
# for work, as the processes of a Pool do: one of them in the pipe, the others for a semaphore.
packages=python3
kind=lock-wait
text='feed waited for space in a queue .*: render [0-9]+ ended it'
cause() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/bounded.py" slow "$SECONDS_OF_RUN"; }
twin() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/bounded.py" quick "$SECONDS_OF_RUN"; }
target() { target_with_thread feed > /dev/null && echo '--name feed --name render'; }
