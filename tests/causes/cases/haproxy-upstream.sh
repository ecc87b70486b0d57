# HAProxy waits in epoll for an application behind it, which computes for 200 ms of each request, over connections
# that are kept.
packages="haproxy python3"
kind='network-wait'
text='haproxy waited for an answer of the upstream 127\.0\.0\.1:[0-9]+ \(python3 [0-9]+\) to [0-9]+ requests, .* while clients waited for haproxy'
. "$HERE/servers.sh"

prepare() {
    upstream=$(free_port)
    start "$DEBIAN_PYTHON" "$PROGRAMS/upstream.py" serve "$upstream"
    start_haproxy "$upstream"
}
requests() { # PATH
    "$DEBIAN_PYTHON" "$PROGRAMS/upstream.py" client "$port" "$1" "$SECONDS_OF_RUN"
}
cause() { requests /slow; }
twin() { requests /fast; }
target() { echo "-p $server"; }
