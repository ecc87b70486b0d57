#!/bin/bash
# Runs contrib/wallprof.service under the real systemd: started, reloaded, killed, restarted and stopped.
#
# systemd is process 1 of a container whose root is an overlay of this machine's, so that nothing is left
# behind. Needs root, `make release` and the Debian package systemd; where no container can be made, that is
# said and nothing is tested.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly WALLPROF=${WALLPROF:-$PWD/target/release/wallprof}
readonly SYSTEMD=/lib/systemd/systemd
readonly LONGEST_SECONDS=90
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
    mount -t overlay overlay -o "lowerdir=/,upperdir=$store/changes,workdir=$store/work" "$store/root" || return 1
    install -D "$WALLPROF" "$store/root/usr/local/bin/wallprof"
    install -D -m 644 contrib/wallprof.service "$store/root/etc/systemd/system/wallprof.service"
    install -D -m 644 contrib/wallprof.toml "$store/root/etc/wallprof.toml"
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
    exec timeout --signal=KILL "$LONGEST_SECONDS" \
        unshare --mount --pid --fork --kill-child --cgroup --uts --ipc bash -c enter
) || true # the container's power-off is no success to unshare
[[ -e $store/root/inside.out ]] || fail "nothing was tested within $LONGEST_SECONDS s"
cat "$store/root/inside.out"
[[ $(tail -1 "$store/root/inside.out") == 'all of it holds' ]] || fail "see above"
