#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs the packages of packaging/build.sh in a clean Debian 12 and a clean Debian 13, uses and removes them, and
# fails if a file is left.
#
#   tests/packages/run.sh [RELEASE…]    bookworm and trixie
#
# Where no container with systemd can be made, that is said; with WALLPROF_REQUIRE_SYSTEMD=1 it is a failure.
# Needs root, debootstrap, lintian, skopeo, podman and Debian's archive. The roots are kept in target/packages-roots;
# each run works on an overlay of one root.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly PACKAGES=$PWD/target/packages
readonly ROOTS=$PWD/target/packages-roots
readonly ARCHIVE=http://deb.debian.org/debian
readonly RELEASE=${RELEASE:-target/release}
# The exit code of tests/systemd/run.sh where it can make no container.
readonly UNTESTED=77
not_tested=()

say() { echo "packages: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

in_root() {
    chroot "$store/root" env LC_ALL=C DEBIAN_FRONTEND=noninteractive HOME=/root \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

make_root() { # RELEASE
    [[ -e $ROOTS/$1/complete ]] && return
    say "makes a $1 in $ROOTS/$1"
    rm -rf "${ROOTS:?}/$1"
    mkdir -p "$ROOTS"
    debootstrap --variant=minbase --include=systemd,dbus,curl,procps "$1" "$ROOTS/$1" "$ARCHIVE" > "$ROOTS/$1.log" 2>&1 ||
        fail "debootstrap $1: $(tail -1 "$ROOTS/$1.log")"
    touch "$ROOTS/$1/complete"
}

enter_root() { # RELEASE
    store=$(mktemp -d)
    mount -t tmpfs tmpfs "$store"
    mkdir "$store"/{changes,work,root}
    mount -t overlay overlay -o "lowerdir=$ROOTS/$1,upperdir=$store/changes,workdir=$store/work" "$store/root"
    mount --rbind /proc "$store/root/proc"
    mount --rbind /sys "$store/root/sys"
    mount --rbind /dev "$store/root/dev"
    mount -t tmpfs tmpfs "$store/root/tmp"
    printf '#!/bin/sh\nexit 101\n' > "$store/root/usr/sbin/policy-rc.d"
    chmod 755 "$store/root/usr/sbin/policy-rc.d"
    cp "$PACKAGES"/* "$store/root/tmp/"
}

leave_root() {
    umount -R -l "$store/root" 2> /dev/null || true
    umount -l "$store" 2> /dev/null || true
    rmdir "$store" 2> /dev/null || true
}

# All files and folders, without those that dpkg itself keeps.
files() {
    (cd "$store/root" && find . -xdev \( -path ./tmp -o -path './var/lib/dpkg/*' -o -path './var/log/*' \
        -o -path './var/cache/*' \) -prune -o \( -type f -o -type l -o -type d \) -print | sort)
}

# Records a program that sleeps and computes, and reads the recording.
use() { # BINARY
    in_root "$1" --version > /dev/null
    in_root "$1" doctor > "$store/doctor" || fail "doctor: $(cat "$store/doctor")"
    in_root "$1" record -o /tmp/wallprof.db -- sh -c 'for i in 1 2 3 4 5; do sleep 0.1; done' \
        > "$store/record" 2>&1 ||
        fail "record: $(cat "$store/record")"
    in_root "$1" report /tmp/wallprof.db > "$store/report" || fail 'the report fails'
    grep -q sleep "$store/report" || fail "the report does not name what was recorded: $(cat "$store/report")"
    rm -f "$store/root"/tmp/wallprof.db*
}

try_package() {
    local before file
    before=$(files)
    in_root dpkg -i "/tmp/${deb##*/}" > "$store/dpkg" 2>&1 || fail "dpkg -i: $(cat "$store/dpkg")"
    use wallprof
    [[ -e $store/root/usr/share/man/man1/wallprof.1.gz ]] || fail 'there is no man page'
    for file in $(grep -o '/usr/share/[A-Za-z0-9./-]*[A-Za-z0-9]' "$store/root/usr/share/doc/wallprof/copyright"); do
        [[ -s $store/root$file ]] || fail "copyright names $file, which is not there"
    done
    has_notices < "$store/root/usr/share/doc/wallprof/NOTICE" || fail 'NOTICE of the package lacks a library'
    tests/packages/links.py "$store/root/usr/share/doc/wallprof" > "$store/links" ||
        fail "links that lead nowhere in the package: $(cat "$store/links")"
    in_root systemctl is-enabled wallprof > "$store/enabled" 2>&1 && fail 'the service is enabled'
    # It says what to edit, and does not start.
    in_root wallprof watch --config /etc/wallprof.toml > "$store/watch" 2>&1 && fail 'it watches without a target'
    grep -q '/etc/wallprof.toml has no target' "$store/watch" || fail "watch: $(cat "$store/watch")"
    in_root dpkg --remove wallprof > "$store/dpkg" 2>&1 || fail "dpkg --remove: $(cat "$store/dpkg")"
    [[ -e $store/root/etc/wallprof.toml ]] || fail 'removal deletes the configuration'
    mkdir -p "$store/root/var/lib/private/wallprof"
    in_root dpkg --purge wallprof > "$store/dpkg" 2>&1 || fail "dpkg --purge: $(cat "$store/dpkg")"
    diff <(echo "$before") <(files) >&2 || fail 'the purged package leaves these files'
}

# The lines of a page from one that begins with START to the end of its block of code, as root types them.
lines_of() { # PAGE START
    awk -v start="$2" 'index($0, start) == 1 { found = 1 } /^```/ { found = 0 } found' "$1" | sed 's/sudo //g'
}

# In standard input: the libraries under the LGPL, and the versions of their sources.
has_notices() {
    local text
    text=$(cat)
    grep -q '^libelf of elfutils, under LGPL-3.0-or-later$' <<< "$text" &&
        grep -q '^The GNU C Library (glibc), under LGPL-2.1-or-later$' <<< "$text" &&
        grep -q '^uPlot, under MIT$' <<< "$text" &&
        [[ $(tail -3 <<< "$text" | cut -d' ' -f1 | xargs) == 'elfutils glibc zlib' ]]
}

# Installed and removed by the lines of the README and of docs/install.md.
try_archive() {
    local before file share=$store/root/usr/local/share
    before=$(files)
    lines_of README.md 'tar xzf ' | head -1 > "$store/install"
    lines_of docs/install.md 'cd /usr/local/share' > "$store/remove"
    [[ -s $store/install && -s $store/remove ]] || fail 'the pages do not say how the archive is installed and removed'
    in_root bash -e -c "cd /tmp; $(< "$store/install")" || fail "the README: $(< "$store/install")"
    use /usr/local/bin/wallprof
    for file in man/man1/wallprof.1 bash-completion/completions/wallprof zsh/site-functions/_wallprof \
        fish/vendor_completions.d/wallprof.fish; do
        [[ -s $share/$file ]] || fail "the archive installs no share/$file"
    done
    in_root bash -n /usr/local/share/bash-completion/completions/wallprof || fail 'bash cannot read its completion'
    for file in README.md LICENSE NOTICE THIRD-PARTY LICENSES/*.txt bom.cdx.json contrib docs/install.md; do
        [[ -e $store/root/tmp/$name/$file ]] || fail "the archive lacks $file"
    done
    has_notices < "$store/root/tmp/$name/NOTICE" || fail 'NOTICE of the archive lacks a library'
    tests/packages/links.py "$store/root/tmp/$name" > "$store/links" ||
        fail "links that lead nowhere in the archive: $(cat "$store/links")"
    in_root bash -e -c "$(< "$store/remove")" || fail "docs/install.md: $(< "$store/remove")"
    diff <(echo "$before") <(files) >&2 || fail 'the removed archive leaves these files'
}

# Under the systemd of this Debian, in one root: installed, used, started, upgraded, removed and purged while it runs.
try_service() { # RELEASE
    local state=0
    LOWER=$ROOTS/$1 FILES=$debs INSIDE=tests/packages/inside.sh NOT_TESTED=$UNTESTED \
        tests/systemd/run.sh > "$store/service" 2>&1 || state=$?
    case $state in
        0) say "$1: systemd starts and stops the service; upgraded, removed and purged while it runs, it leaves nothing" ;;
        "$UNTESTED")
            say "$1: NOT TESTED under systemd: $(cat "$store/service")"
            not_tested+=("$1")
            ;;
        *) fail "$1: the service: $(cat "$store/service")" ;;
    esac
}

# The package, and the same with an older number.
make_debs() {
    debs=$(mktemp -d)
    cp "$deb" "$debs/new.deb"
    dpkg-deb -R "$deb" "$debs/older"
    sed -i 's/^Version: .*/Version: 0.0.9-1/' "$debs/older/DEBIAN/control"
    dpkg-deb --root-owner-group -b "$debs/older" "$debs/older.deb" > /dev/null
    rm -rf "$debs/older"
}

check_deb() {
    local found
    found=$(lintian --allow-root --fail-on error,warning "$deb" 2>&1) || fail "lintian: $found"
}

# CHANGELOG.md has a section of this version, whose links lead out of the notes.
check_notes() {
    local notes version=${name#wallprof-}
    notes=$(packaging/notes.sh "${version%-x86_64-linux}" https://example.org/v) || fail 'the release has no notes'
    grep -q '](https://example.org/v/docs/' <<< "$notes" || fail 'the notes have no link'
    ! grep -q '](docs/' <<< "$notes" || fail 'a link of the notes leads nowhere'
}

run_image() { # ARGUMENT OF podman run…
    podman --runtime="$(type -P runc || echo crun)" run --rm --ulimit=nofile=1024:1024 --ulimit=nproc=1024:1024 "$@"
}

# As docs/install.md says: it sees the processes of the host.
record_in_image() { # IMAGE
    local folder
    folder=$(mktemp -d)
    run_image --privileged --pid=host --network=host -v /sys/kernel:/sys/kernel:ro -v "$folder:/out" -w /out "$1" \
        record -p $$ -d 1 -o own.db || fail 'the image does not record'
    "$RELEASE/wallprof" report "$folder/own.db" | grep -q '^wallprof: run.sh' || fail 'the image recorded another process'
    rm -rf "$folder"
    say 'the image records a process of the host'
}

# The image is whole, and its layer has the binary that was released.
check_image() {
    local folder out version layer file
    folder=$(mktemp -d) out=$(mktemp) version=${name#wallprof-} version=${version%-x86_64-linux}
    skopeo copy --quiet "oci-archive:$image" "dir:$folder" || fail 'skopeo cannot read the image'
    layer=$folder/$(jq -r '.layers[0].digest' "$folder/manifest.json" | cut -d: -f2)
    tar xzOf "$layer" usr/bin/wallprof | cmp - "$RELEASE/wallprof" || fail 'the image has another binary'
    for file in LICENSE THIRD-PARTY LICENSES/*.txt; do
        tar xzOf "$layer" "usr/share/doc/wallprof/$file" | cmp - "$file" || fail "the image has another $file"
    done
    has_notices < <(tar xzOf "$layer" usr/share/doc/wallprof/NOTICE) || fail 'NOTICE of the image lacks a library'
    rm -rf "$folder"
    podman load --quiet --input "$image" > /dev/null || fail 'podman cannot load the image'
    # Where this machine lets no container have limits, control groups and a network, that is said.
    if run_image --network=none "localhost/wallprof:$version" --version > "$out" 2>&1; then
        [ "$(< "$out")" = "wallprof $version" ] || fail "the image says $(< "$out")"
        record_in_image "localhost/wallprof:$version"
    else
        say "the image is loaded and not run: $(tail -1 "$out")"
    fi
    podman rmi "localhost/wallprof:$version" > /dev/null
    rm -f "$out"
}

[[ $(id -u) == 0 ]] || fail 'this needs root'
for tool in debootstrap lintian skopeo podman jq; do
    command -v $tool > /dev/null || fail "$tool is missing: apt install $tool"
done
(cd "$PACKAGES" && sha256sum --quiet -c SHA256SUMS) || fail 'SHA256SUMS does not match: make packages'
deb=$(echo "$PACKAGES"/*.deb) archive=$(echo "$PACKAGES"/*.tar.gz) image=$(echo "$PACKAGES"/*.oci.tar)
name=$(basename "$archive" .tar.gz)

check_notes
check_deb
say 'lintian has no error and no warning'
check_image
say 'the image is whole'
trap 'leave_root; rm -rf "$debs"' EXIT
make_debs
[[ $# -gt 0 ]] || set -- bookworm trixie
for release in "$@"; do
    make_root "$release"
    enter_root "$release"
    try_archive
    say "$release: the archive is installed, works, has no broken link, is removed, and leaves nothing"
    try_package
    say "$release: the package is installed, works, is removed, and leaves nothing"
    try_service "$release"
    leave_root
done
[[ ${#not_tested[@]} == 0 ]] || say "NOT TESTED under systemd: ${not_tested[*]}"
