#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adds to target/packages the sources of the libraries under the LGPL in the binary, as docs/licences.md promises: the files of
# the Debian source packages that NOTICE of the archive names, by their versions.
#
#   packaging/sources.sh
#
# Needs a Debian, or Ubuntu, whose archive has these versions, and the network. Files of the system are not changed.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly OUT=$PWD/target/packages

fail() { echo "packaging/sources.sh: $*" >&2; exit 1; }

archive=("$OUT"/wallprof-*-linux.tar.gz)
[ -f "${archive[0]}" ] || fail 'there is no archive in target/packages: make packages'
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/lists/partial"

# The repositories of this system, with their sources.
for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources; do
    [ ! -f $file ] || sed 's/^Types:.*/Types: deb-src/' $file > "$folder/$(basename $file)"
done
[ ! -s /etc/apt/sources.list ] || sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > "$folder/one.list"
apt() { apt-get -q -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$folder" -o Dir::State::Lists="$folder/lists" "$@"; }
apt update > "$folder/log" 2>&1 || fail "apt-get update: $(tail -1 "$folder/log")"

mkdir "$folder/sources"
while read -r package version; do
    (cd "$folder/sources" && apt source --download-only "$package=$version" > "$folder/log" 2>&1) ||
        fail "$package $version: $(tail -1 "$folder/log")"
done < <(tar xzOf "${archive[0]}" --wildcards '*/NOTICE' | tail -3 | grep -E '^(elfutils|glibc) ')
[ "$(find "$folder/sources" -name '*.dsc' | wc -l)" = 2 ] || fail 'NOTICE does not end with the versions of elfutils and glibc'
cp "$folder"/sources/* "$OUT/"
cd "$OUT"
rm SHA256SUMS
sha256sum -- * > SHA256SUMS
