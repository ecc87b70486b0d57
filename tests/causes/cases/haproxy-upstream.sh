# SPDX-License-Identifier: Apache-2.0
# HAProxy waits in epoll for an application behind it, which computes for 200 ms of each request, over connections
# that are kept.
packages="haproxy python3"
kind='network-wait'
text='haproxy waited for an answer of the upstream 127\.0\.0\.1:[0-9]+ \(python3 [0-9]+\) to [0-9]+ requests, .* while clients waited for haproxy'
. "$HERE/servers.sh"

prepare() {
    start_application
    start_haproxy "$upstream"
}
cause() { request /slow; }
twin() { request /fast; }
target() { echo "-p $server"; }
