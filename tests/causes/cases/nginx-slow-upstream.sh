# A client of nginx waits for an application behind it, which computes for 200 ms of each request.
packages="nginx python3"
kind='network-wait|wake-chain'
text='python3 waited .*nginx'
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
    run_as_target "$DEBIAN_PYTHON" "$PROGRAMS/upstream.py" client "$port" "$1" "$SECONDS_OF_RUN"
}
cause() { requests /slow; }
twin() { requests /fast; }
