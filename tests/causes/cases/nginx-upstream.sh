# SPDX-License-Identifier: Apache-2.0
# nginx waits in epoll for an application behind it, which computes for 200 ms of each request. Its worker is
# recorded.
packages="nginx python3"
kind='network-wait'
text='nginx waited for an answer of the upstream 127\.0\.0\.1:[0-9]+ \(python3 [0-9]+\) to [0-9]+ requests, .* while clients waited for nginx'
. "$HERE/servers.sh"

prepare() {
    start_application
    start_nginx_proxy "$upstream"
}
cause() { request /slow; }
twin() { request /fast; }
target() { echo "-p $(pgrep -P "$server")"; }
