# SPDX-License-Identifier: Apache-2.0
# Databases and servers for the cases: each runs from $WORK, with a socket or port of its own.
#
# A start_… function returns once its server answers, and leaves the server's process id in $server.

# A free TCP port.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Becomes the program of a server that refuses to run as root.
as() { # USER COMMAND…
    local user=$1
    shift
    exec setpriv --reuid="$user" --regid="$user" --init-groups --inh-caps=-all -- "$@"
}

# PostgreSQL with a database `shop` of a user `app`, on a socket in $WORK. Arguments: lines of configuration.
start_postgres() {
    local bin
    bin=$(pg_bin)
    install -d -o postgres -m 700 "$WORK/data"
    (as postgres "$bin/initdb" -D "$WORK/data" -A trust --no-sync)
    {
        echo "listen_addresses = ''"
        echo "unix_socket_directories = '$WORK/data'"
        echo "logging_collector = off"
        printf '%s\n' "$@"
    } >> "$WORK/data/postgresql.conf"
    start as postgres "$bin/postgres" -D "$WORK/data"
    server=${pids[-1]}
    export PGHOST=$WORK/data PGUSER=postgres PGDATABASE=postgres
    until_ready psql -c 'select 1'
    psql -q -c 'create role app superuser login' -c 'create database shop owner app'
    export PGUSER=app PGDATABASE=shop
}

pg_bin() {
    ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1
}

# MariaDB with a database `shop`, on a socket in $WORK. Arguments: options of the server.
start_mariadb() {
    install -d -o mysql "$WORK/data"
    mariadb-install-db --no-defaults --user=mysql --datadir="$WORK/data" --skip-test-db > "$WORK/install.log" 2>&1
    start mariadbd --no-defaults --user=mysql --datadir="$WORK/data" --socket="$WORK/data/socket" \
        --skip-networking --pid-file="$WORK/data/pid" "$@"
    server=${pids[-1]}
    until_ready sql <<< 'create database if not exists shop'
}

# Runs the statements of stdin in the MariaDB of this case, over one connection.
sql() {
    mariadb --no-defaults --socket="$WORK/data/socket" --batch --skip-column-names "$@"
}

# Redis on a socket in $WORK. Arguments: options of the server.
start_redis() {
    start redis-server --port 0 --unixsocket "$WORK/socket" --dir "$WORK" --save '' "$@"
    server=${pids[-1]}
    until_ready redis-cli -s "$WORK/socket" ping
}

# nginx with one worker; its configuration is read from stdin, inside of `http { }`. $port is its port. $modules:
# directives that load modules.
start_nginx() {
    port=$(free_port)
    {
        echo "${modules:-}"
        echo "daemon off; worker_processes 1; pid $WORK/nginx.pid; error_log $WORK/error.log;"
        echo "events { worker_connections 512; }"
        echo "http { access_log off; client_body_temp_path $WORK/body; proxy_temp_path $WORK/proxy;"
        echo "fastcgi_temp_path $WORK/fastcgi; uwsgi_temp_path $WORK/uwsgi; scgi_temp_path $WORK/scgi;"
        sed "s/PORT/$port/"
        echo "}"
    } > "$WORK/nginx.conf"
    start nginx -e "$WORK/error.log" -p "$WORK" -c "$WORK/nginx.conf"
    server=${pids[-1]}
    until_ready bash -c "exec 3<>/dev/tcp/127.0.0.1/$port"
}

# nginx as a proxy in front of a port.
start_nginx_proxy() { # UPSTREAM
    start_nginx << NGINX
server {
    listen 127.0.0.1:PORT;
    location / { proxy_pass http://127.0.0.1:$1; }
}
NGINX
}

# An application that computes for 200 ms of each request for /slow; $upstream is its port.
start_application() {
    upstream=$(free_port)
    start "$DEBIAN_PYTHON" "$PROGRAMS/upstream.py" serve "$upstream"
}

# Becomes a client that requests a path of $port for the length of the workload.
request() { # PATH
    exec "$DEBIAN_PYTHON" "$PROGRAMS/upstream.py" client "$port" "$1" "$SECONDS_OF_RUN"
}

# Runs a command again and again for the length of the workload.
for_the_run() {
    local until=$((SECONDS + SECONDS_OF_RUN))
    while [ "$SECONDS" -lt "$until" ]; do
        "$@" || return
    done
}

# HAProxy in front of a port; $port is its own.
start_haproxy() { # UPSTREAM
    port=$(free_port)
    cat > "$WORK/haproxy.cfg" << HAPROXY
global
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend shop
    bind 127.0.0.1:$port
    default_backend application
backend application
    server one 127.0.0.1:$1
HAPROXY
    start haproxy -db -f "$WORK/haproxy.cfg"
    server=${pids[-1]}
    until_ready bash -c "exec 3<>/dev/tcp/127.0.0.1/$port"
}

# memcached with its usual four threads; $port is its own.
start_memcached() {
    port=$(free_port)
    start memcached -u nobody -l 127.0.0.1 -p "$port" "$@"
    server=${pids[-1]}
    until_ready bash -c "exec 3<>/dev/tcp/127.0.0.1/$port"
}
