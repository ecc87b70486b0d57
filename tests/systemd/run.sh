#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs contrib/wallprof.service under the real systemd: started, reloaded, killed, restarted and stopped. With DEB, the
# service of that Debian package. It watches everything.
#
# systemd is process 1 of a container whose root is an overlay of this machine's (of the folder LOWER), so that nothing is
# left behind. Needs root, `make release` and the Debian package systemd; where no container can be made, that is
# said and nothing is tested.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly WALLPROF=${WALLPROF:-$PWD/target/release/wallprof}
readonly LOWER=${LOWER:-/}
readonly DEB=${DEB:-}
readonly SYSTEMD=/lib/systemd/systemd
# The tests inside write a line after each step. A step waits at most 60 s.
readonly SILENT_SECONDS=120
# A cgroup of its own: systemd takes the one that it finds itself in for the root of all.
readonly GROUP=wallprof-systemd-test

say() { echo "systemd: $*" >&2; }
fail() { say "$*"; exit 1; }
skip() { say "not tested: $*"; exit 0; }

unified_mount() {
    awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts
}

tear_down() {
    umount -R "$store/root" 2>/dev/null || true
    umount "$store" 2>/dev/null || true
    rmdir "$store" 2>/dev/null || true
    find "$unified/$GROUP" -depth -type d -exec rmdir {} + 2>/dev/null || true
}

build_root() {
    mount -t tmpfs tmpfs "$store"
    mkdir "$store"/{changes,work,root}
    mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$store/changes,workdir=$store/work" "$store/root" || return 1
    if [[ -n $DEB ]]; then
        cp "$DEB" "$store/root/wallprof.deb"
        chroot "$store/root" dpkg -i /wallprof.deb >&2 || return 1
    else
        install -D "$WALLPROF" "$store/root/usr/local/bin/wallprof"
        install -D -m 644 contrib/wallprof.service "$store/root/etc/systemd/system/wallprof.service"
        install -D -m 644 contrib/wallprof.toml "$store/root/etc/wallprof.toml"
    fi
    sed -i 's/^# all = true.*/all = true/' "$store/root/etc/wallprof.toml"
    install -D tests/systemd/inside.sh "$store/root/inside.sh"
    cat >"$store/root/etc/systemd/system/inside.target" <<-END
	[Unit]
	Wants=wallprof.service inside.service systemd-journald.service
	END
    cat >"$store/root/etc/systemd/system/inside.service" <<-END
	[Unit]
	After=wallprof.service
	[Service]
	Type=oneshot
	ExecStart=/bin/bash /inside.sh
	StandardOutput=file:/inside.out
	StandardError=file:/inside.out
	END
}

# Becomes systemd in the container; runs in namespaces of its own.
enter() {
    mount --make-rprivate /
    cd "$store/root"
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount --rbind /dev dev
    mount --bind /dev/null dev/console
    mount -t tmpfs -o mode=755 tmpfs run
    mount -t tmpfs tmpfs tmp
    pivot_root . mnt
    cd /
    umount -l /mnt
    export container=wallprof-test
    exec "$SYSTEMD" --system --unit=inside.target --show-status=no >/dev/null 2>&1
}

# Returns when the container ends. Kills it when its tests wrote nothing for SILENT_SECONDS.
watch_over() { # PID
    local said=0 size until=$((SECONDS + SILENT_SECONDS))
    while kill -0 "$1" 2>/dev/null; do
        size=$(stat -c %s "$store/root/inside.out" 2>/dev/null || echo 0)
        [[ $size == "$said" ]] || until=$((SECONDS + SILENT_SECONDS))
        said=$size
        if ((SECONDS >= until)); then
            say "the tests wrote nothing for $SILENT_SECONDS s"
            kill -KILL "$1" 2>/dev/null || true
            return
        fi
        sleep 0.2
    done
}

[[ $(id -u) == 0 ]] || skip "this needs root"
[[ -x $SYSTEMD ]] || skip "systemd is not installed: apt-get install systemd"
unified=$(unified_mount)
[[ -n $unified ]] || skip "this machine has no cgroup2"
[[ -x $WALLPROF ]] || fail "$WALLPROF is not there: make release"
unshare --mount --pid --fork --cgroup --uts --ipc true 2>/dev/null || skip "this machine allows no namespaces"
store=$(mktemp -d)
trap tear_down EXIT
build_root || skip "this kernel refuses an overlay of /"
mkdir -p "$unified/$GROUP"
export -f enter
export store SYSTEMD
(
    echo "$BASHPID" >"$unified/$GROUP/cgroup.procs"
    exec unshare --mount --pid --fork --kill-child --cgroup --uts --ipc bash -c enter
) &
container=$!
watch_over $container
wait $container || true # the container's power-off is no success to unshare
[[ -e $store/root/inside.out ]] || fail "nothing was tested"
cat "$store/root/inside.out"
[[ $(tail -1 "$store/root/inside.out") == 'all of it holds' ]] || fail "see above"
