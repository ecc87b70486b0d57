# SPDX-License-Identifier: Apache-2.0
# nginx serves files of 4 MB that are not in the page cache.
packages="nginx apache2-utils"
kind=disk-wait
text='nginx waited for a disk \((sendfile|pread64|read)\) in ngx_'
. "$HERE/servers.sh"

prepare() {
    local file
    mkdir -m 755 "$WORK/files"
    for file in $(seq 40); do
        head -c 4M /dev/urandom > "$WORK/files/file-$file"
    done
    sync "$WORK"/files/*
    start_nginx <<NGINX
sendfile on;
server { listen 127.0.0.1:PORT; root $WORK/files; }
NGINX
    worker=$(pgrep -P "$server")
}
# Asks for all files, again and again; drops them from the page cache before each round where WHAT is cold.
downloads() { # WHAT
    local until=$((SECONDS + SECONDS_OF_RUN)) file
    while [ "$SECONDS" -lt "$until" ]; do
        for file in $(seq 40); do
            [ "$1" = warm ] || dd of="$WORK/files/file-$file" oflag=nocache conv=notrunc,fdatasync count=0 status=none
            curl -so /dev/null "http://127.0.0.1:$port/file-$file"
            sleep 0.02
        done
    done
}
cause() { downloads cold; }
twin() { downloads warm; }
target() { echo "-p $worker"; }
