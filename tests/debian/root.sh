#!/bin/bash
# Makes a folder with Debian 13 and the software of some cases in it, for tests/causes/run.sh with ROOT: by default
# target/debian/root. As root, some 1 GB, a few minutes. Without debootstrap or a network it says so: exit code 3.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly FOLDER=${1:-$PWD/target/debian/root}
readonly ARCHIVE=http://deb.debian.org/debian
PACKAGES=(openjdk-21-jdk-headless ruby python3 redis-server redis-tools postgresql)

say() { echo "root: $*" >&2; }

[ ! -e "$FOLDER/usr/bin/ruby" ] || exit 0
[ "$(id -u)" = 0 ] || { say 'this needs root'; exit 1; }
command -v debootstrap > /dev/null || { say 'debootstrap is not installed'; exit 3; }
mkdir -p "$(dirname "$FOLDER")"
folder=$(mktemp -d "$(dirname "$FOLDER")/making.XXXXXX")
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
debootstrap --variant=minbase trixie "$folder" "$ARCHIVE" > "$folder.log" 2>&1 || {
    say "debootstrap failed: $(tail -1 "$folder.log")"
    exit 3
}
mv "$folder.log" "$folder/var/log/making.log"
# No server of the packages starts in there.
printf '#!/bin/sh\nexit 101\n' > "$folder/usr/sbin/policy-rc.d"
chmod 755 "$folder/usr/sbin/policy-rc.d"
# The packages of Java need /proc while they are set up. The mount ends with the command.
# shellcheck disable=SC2016 # expanded by the inner shell
DEBIAN_FRONTEND=noninteractive unshare --mount --propagation private bash -c \
    'mount --bind /proc "$0/proc" && chroot "$0" apt-get update -qq &&
        exec chroot "$0" apt-get install -y -qq --no-install-recommends "$@"' \
    "$folder" "${PACKAGES[@]}" >> "$folder/var/log/making.log" 2>&1 < /dev/null || {
    say "apt-get failed: $(tail -1 "$folder/var/log/making.log")"
    exit 3
}
chroot "$folder" apt-get clean
mv "$folder" "$FOLDER"
