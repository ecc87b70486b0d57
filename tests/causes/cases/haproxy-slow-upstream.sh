# SPDX-License-Identifier: Apache-2.0
# A client of HAProxy waits for an application behind it, which computes for 200 ms of each request.
packages="haproxy python3"
kind='network-wait|wake-chain'
text='python3 waited .*haproxy'
. "$HERE/servers.sh"

prepare() {
    start_application
    start_haproxy "$upstream"
}
requests() { # PATH
    run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/upstream.py" client "$port" "$1" "$SECONDS_OF_RUN"
}
cause() { requests /slow; }
twin() { requests /fast; }
