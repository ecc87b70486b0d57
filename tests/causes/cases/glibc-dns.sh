# SPDX-License-Identifier: Apache-2.0
# The configured DNS server never answers. The program has a file resolv.conf of its own.
packages="python3"
kind=lock-wait
text='python3 waited for DNS in '
skip_unless='unshare --mount true'

prepare() {
    start "$DEBIAN_PYTHON" "$PROGRAMS/dns.py" silent 127.0.0.77
    start "$DEBIAN_PYTHON" "$PROGRAMS/dns.py" answer 127.0.0.78
}
lookups() { # ADDRESS
    printf 'nameserver %s\noptions timeout:1 attempts:2\n' "$1" > "$WORK/resolv.conf"
    # shellcheck disable=SC2016 # expanded inside
    run_as_target unshare --mount bash -c 'mount --bind "$1/resolv.conf" /etc/resolv.conf
        exec "$2" "$3/dns.py" lookups "$4"' - "$WORK" "$DEBIAN_PYTHON" "$PROGRAMS" "$SECONDS_OF_RUN"
}
cause() { lookups 127.0.0.77; }
twin() { lookups 127.0.0.78; }
