#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks the C library of Debian 13 into target/debian/trixie: tests run their scenarios on it, beside that of this
# machine. Its condition variables are those of glibc 2.41. Without a network the tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly STORE=$PWD/target/debian
readonly FOLDER=$STORE/trixie

say() { echo "libc: $*" >&2; }
. tests/debian/packages.sh

[ ! -e "$FOLDER" ] || exit 0
mkdir -p "$STORE"
folder=$(mktemp -d "$STORE/download.XXXXXX")
trap 'rm -rf "$folder"' EXIT
refresh_lists
(cd "$folder" && APT_CONFIG=$APT/apt.conf apt-get download -qq libc6/trixie) || { say "cannot be downloaded"; exit 0; }
dpkg-deb -x "$folder"/libc6_*.deb "$folder/root"
mv "$folder/root" "$FOLDER"
