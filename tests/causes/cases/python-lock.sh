# SPDX-License-Identifier: Apache-2.0
# A request that keeps a threading.Lock for 20 ms while it sleeps: the other one waits for it.
packages=python3
kind=lock-wait
text='2 threads named python3 waited for a lock in (PyThread_acquire_lock_timed|_PySemaphore_Wait) .* (they held it in turn, each|python3 [0-9]+ held it, itself) off the CPU .*sleep in'
cause() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/locked.py" slow "$SECONDS_OF_RUN"; }
twin() { run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/locked.py" quick "$SECONDS_OF_RUN"; }
