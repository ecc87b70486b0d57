# SPDX-License-Identifier: Apache-2.0
# A handler in Perl sleeps for 50 ms: nginx's worker stands still, and all other requests with it.
packages="nginx libnginx-mod-http-perl perl curl"
kind=blocked-loop
text='nginx did not return to epoll_wait .*asleep in the handler ngx_http_perl_handle_request'
. "$HERE/servers.sh"

prepare() {
    modules='load_module /usr/lib/nginx/modules/ngx_http_perl_module.so;' start_nginx <<'NGINX'
server {
    listen 127.0.0.1:PORT;
    location /slow { perl 'sub { use Time::HiRes; Time::HiRes::usleep(50_000); return 204; }'; }
    location /fast { perl 'sub { return 204; }'; }
}
NGINX
    worker=$(pgrep -P "$server")
}
requests() { # PATH
    local until=$((SECONDS + SECONDS_OF_RUN))
    while [ "$SECONDS" -lt "$until" ]; do
        curl -so /dev/null "http://127.0.0.1:$port$1"
        sleep 0.05
    done
}
cause() { requests /slow; }
twin() { requests /fast; }
target() { echo "-p $worker"; }
