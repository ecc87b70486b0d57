#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command in a Debian 13: its C library, runtimes and servers, on this kernel. wallprof itself runs outside
# of it, as beside a container.
#
#   tests/debian/root.sh COMMAND [ARGUMENT …]
#
# Makes the folder target/debian/root with debootstrap once, a gigabyte, which needs root and Debian's archive.
# Programs in it see the processes, devices, /tmp and /var/tmp of this machine, and this checkout under its own path. In
# $WALLPROF the command has a program that runs target/release/wallprof (WALLPROF names another) outside.
# Exit code: that of the command.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly CHECKOUT=$PWD
readonly ROOT=$PWD/target/debian/root
readonly RELEASE=trixie
readonly ARCHIVE=http://deb.debian.org/debian
# What tests/causes needs.
readonly PACKAGES=(
    jq sqlite3 python3 gcc g++ libc6-dev procps util-linux e2fsprogs curl
    ruby nodejs openjdk-21-jdk-headless postgresql mariadb-server redis-server redis-tools
    nginx apache2-utils haproxy perl libnginx-mod-http-perl libcommons-pool2-java libspdlog-dev gunicorn
)

say() { echo "debian: $*" >&2; }
fail() {
    say "$*"
    exit 2
}

in_root() { chroot "$ROOT" env LC_ALL=C DEBIAN_FRONTEND=noninteractive HOME=/root "$@"; }

make_root() {
    local log=$ROOT.log
    say "makes a $RELEASE in $ROOT: $log"
    # Its own folder is there until debootstrap is done.
    if [[ ! -e $ROOT/etc/debian_version || -e $ROOT/debootstrap ]]; then
        rm -rf "$ROOT"
        debootstrap --variant=minbase "$RELEASE" "$ROOT" "$ARCHIVE" > "$log" 2>&1 || return
    fi
    # Packages start no servers.
    printf '#!/bin/sh\nexit 101\n' > "$ROOT/usr/sbin/policy-rc.d"
    chmod 755 "$ROOT/usr/sbin/policy-rc.d"
    cp /etc/resolv.conf "$ROOT/etc/resolv.conf"
    mount_machine
    in_root apt-get install -y -qq --no-install-recommends "${PACKAGES[@]}" >> "$log" 2>&1 || return
    in_root apt-get clean
    touch "$ROOT/complete"
}

# In the mount namespace of this script, so that nothing stays mounted after it.
mount_machine() {
    local folder
    for folder in /proc /sys /dev /tmp /var/tmp; do
        mountpoint -q "$ROOT$folder" || mount --rbind "$folder" "$ROOT$folder"
    done
    mkdir -p "$ROOT$CHECKOUT"
    mountpoint -q "$ROOT$CHECKOUT" || mount --bind "$CHECKOUT" "$ROOT$CHECKOUT"
}

[[ $# -gt 0 ]] || fail 'usage: root.sh COMMAND [ARGUMENT …]'
[[ $(id -u) == 0 ]] || fail 'this needs root: it makes a folder with another Debian, and runs programs in it'
command -v debootstrap > /dev/null || fail 'debootstrap is not installed'

if [[ -z ${WALLPROF_OUTSIDE:-} ]]; then
    # The process that stays outside has the mounts and the root folder of this machine.
    WALLPROF_OUTSIDE=$$ unshare --mount --propagation private -- "$0" "$@"
    exit
fi

[[ -e $ROOT/complete ]] || make_root || fail "could not be made: $(tail -n 1 "$ROOT.log")"
mount_machine
outside=$(realpath -m "${WALLPROF:-target/release/wallprof}")
[[ -x $outside ]] || fail "$outside is not there: make release, or set WALLPROF"
printf '#!/bin/sh\nexec nsenter --target %d --mount --root -- %q "$@"\n' "$WALLPROF_OUTSIDE" "$outside" \
    > target/debian/wallprof
chmod 755 target/debian/wallprof
command=$(realpath -m "$1")
[[ -x $command ]] || command=$1
shift
exec chroot "$ROOT" env HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LC_ALL=C.UTF-8 "WALLPROF=$CHECKOUT/target/debian/wallprof" "$command" "$@"
