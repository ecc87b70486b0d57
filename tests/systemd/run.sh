#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs contrib/wallprof.service under the real systemd: started, reloaded, killed, restarted and stopped. It watches
# everything.
#
#   INSIDE   runs this script inside instead, which installs what it tests
#   FILES    a folder whose files this script finds in /files
#
# systemd is process 1 of a container whose root is an overlay of this machine's (of the folder LOWER), so that nothing is
# left behind. Needs root, `make release` and the Debian package systemd. Where no container can be made, that is
# said, nothing is tested, and the exit code is NOT_TESTED, 0 without it. With WALLPROF_REQUIRE_SYSTEMD=1 that fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly WALLPROF=${WALLPROF:-$PWD/target/release/wallprof}
readonly LOWER=${LOWER:-/}
readonly INSIDE=${INSIDE:-tests/systemd/inside.sh}
readonly FILES=${FILES:-}
readonly SYSTEMD=/lib/systemd/systemd
# The tests inside write a line after each step. A step waits at most 60 s.
readonly SILENT_SECONDS=120
# A cgroup of its own: systemd takes the one that it finds itself in for the root of all.
readonly GROUP=wallprof-systemd-test

say() { echo "systemd: $*" >&2; }
fail() { say "$*"; exit 1; }
skip() {
    [[ ${WALLPROF_REQUIRE_SYSTEMD:-} != 1 ]] || fail "WALLPROF_REQUIRE_SYSTEMD=1, and this cannot be tested: $*"
    say "not tested: $*"
    exit "${NOT_TESTED:-0}"
}

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
}

# The service of contrib/, as its first lines say.
install_service() {
    install -D "$WALLPROF" "$store/root/usr/local/bin/wallprof"
    install -D -m 644 contrib/wallprof.service "$store/root/etc/systemd/system/wallprof.service"
    install -D -m 644 contrib/wallprof.toml "$store/root/etc/wallprof.toml"
    sed -i 's/^# all = true.*/all = true/' "$store/root/etc/wallprof.toml"
}

install_tests() {
    local wanted='inside.service systemd-journald.service'
    if [[ -n $FILES ]]; then
        cp -r "$FILES" "$store/root/files"
    else
        install_service
        wanted+=' wallprof.service'
    fi
    install tests/systemd/checks.sh "$store/root/checks.sh"
    install "$INSIDE" "$store/root/inside.sh"
    cat >"$store/root/etc/systemd/system/inside.target" <<-END
	[Unit]
	Wants=$wanted
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

# In namespaces of its own: runs /ask in the container's root, among the processes of this machine.
run_outside() {
    mount --make-rprivate /
    cd "$store/root"
    mount --rbind /proc proc
    mount --rbind /sys sys
    mount --rbind /dev dev
    mount -t tmpfs tmpfs run
    mount -t tmpfs tmpfs tmp
    exec timeout 60 chroot . env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin bash /ask
}

# Answers with the output, whose last line is the exit code.
answer() {
    local status=0
    unshare --mount bash -c run_outside >"$store/answer" 2>&1 </dev/null || status=$?
    echo "$status" >>"$store/answer"
    rm "$store/root/ask"
    cp "$store/answer" "$store/root/answer.part"
    mv "$store/root/answer.part" "$store/root/answer"
}

# Returns when the container ends. Kills it when its tests wrote nothing for SILENT_SECONDS.
watch_over() { # PID
    local said=0 size until=$((SECONDS + SILENT_SECONDS))
    while kill -0 "$1" 2>/dev/null; do
        size=$(stat -c %s "$store/root/inside.out" 2>/dev/null || echo 0)
        [[ $size == "$said" ]] || until=$((SECONDS + SILENT_SECONDS))
        said=$size
        [[ ! -e $store/root/ask ]] || answer
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
build_root || skip "this kernel refuses an overlay of $LOWER"
install_tests
mkdir -p "$unified/$GROUP"
export -f enter run_outside
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
