#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks that the same release gives the same packages: runs packaging/build.sh in two clones of the last commit, in
# folders of different depth, with another umask, time zone and language, and compares all files to the byte.
#
#   tests/packages/twice.sh
#
# Both pack the release in target/release (RELEASE: another folder). tests/reproducible compares two releases.
# Needs what packaging/build.sh needs, and the Debian package locales for a language that sorts unlike C.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly PROJECT=$PWD
RELEASE=$(realpath "${RELEASE:-target/release}")
export RELEASE

say() { echo "packages-twice: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

pack() { # FOLDER UMASK ZONE LANGUAGE
    (
        umask "$2"
        git clone -q "$PROJECT" "$1"
        env -u CARGO_TARGET_DIR -u LC_ALL -u SOURCE_DATE_EPOCH LOCPATH="$scratch/locales" TZ="$3" LANG="$4" \
            "$1/packaging/build.sh" > /dev/null
    )
}

# The first byte in which two files differ.
compare() { # NAME
    local message
    message=$(LC_ALL=C cmp "$one/$1" "$other/$1" 2>&1) || fail "$1 differs: ${message##*: }"
}

[[ -x $RELEASE/wallprof ]] || fail "$RELEASE/wallprof is not there: make release"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/locales"
localedef -i de_DE -f UTF-8 "$scratch/locales/de_DE.UTF-8" || fail 'there is no other language: apt install locales'
pack "$scratch/a" 022 UTC C
pack "$scratch/another/folder/that-is-deeper" 077 Pacific/Kiritimati de_DE.UTF-8
one=$scratch/a/target/packages other=$scratch/another/folder/that-is-deeper/target/packages
diff <(ls "$one") <(ls "$other") >&2 || fail 'the artefacts have other names'
for file in "$one"/wallprof* "$one/SHA256SUMS"; do
    compare "${file##*/}"
done
say "both folders give the same $(cd "$one" && cat -- * | wc -c) bytes in $(find "$one" -type f | wc -l) files"
