# SPDX-License-Identifier: Apache-2.0
# Threads import a module that another one is still importing. Python 3.12 and newer shows its functions to profilers.
packages=python3
kind=lock-wait
text='waited for an import lock in .*handle_requests.*(held it|held it in turn|longest).*load_tables'
skip_unless='"$DEBIAN_PYTHON" -X perf -c "import sys; sys.exit(sys.version_info < (3, 12))"'
cause() { run_as_target "$DEBIAN_PYTHON" -X perf "$PROGRAMS/imports.py" slow "$SECONDS_OF_RUN"; }
twin() { run_as_target "$DEBIAN_PYTHON" -X perf "$PROGRAMS/imports.py" quick "$SECONDS_OF_RUN"; }
