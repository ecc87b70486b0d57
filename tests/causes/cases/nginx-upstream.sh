# nginx waits in epoll for an application behind it, which computes for 200 ms of each request. Its worker is
# recorded.
packages="nginx python3"
kind='network-wait'
text='nginx waited for an answer of the upstream 127\.0\.0\.1:[0-9]+ \(python3 [0-9]+\) to [0-9]+ requests, .* while clients waited for nginx'
. "$HERE/servers.sh"

prepare() {
    upstream=$(free_port)
    start "$DEBIAN_PYTHON" "$PROGRAMS/upstream.py" serve "$upstream"
    start_nginx <<NGINX
server {
    listen 127.0.0.1:PORT;
    location / { proxy_pass http://127.0.0.1:$upstream; }
}
NGINX
}
requests() { # PATH
    "$DEBIAN_PYTHON" "$PROGRAMS/upstream.py" client "$port" "$1" "$SECONDS_OF_RUN"
}
cause() { requests /slow; }
twin() { requests /fast; }
target() { echo "-p $(pgrep -P "$server")"; }
