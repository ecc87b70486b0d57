# SPDX-License-Identifier: Apache-2.0
# A client of nginx waits for an application behind it, which computes for 200 ms of each request.
packages="nginx python3"
kind='network-wait|wake-chain'
text='python3 waited .*nginx'
. "$HERE/servers.sh"

prepare() {
    start_application
    start_nginx_proxy "$upstream"
}
requests() { # PATH
    run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/upstream.py" client "$port" "$1" "$SECONDS_OF_RUN"
}
cause() { requests /slow; }
twin() { requests /fast; }
