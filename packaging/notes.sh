#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints what CHANGELOG.md says of a version, as the notes of its release.
#
#   packaging/notes.sh VERSION [URL]
#
# URL leads to the files of that version, for links. Exit code 1: there is no dated section with that number.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VERSION=${1:?the version} URL=${2:-.}

notes=$(awk -v head="## $VERSION (" 'index($0, "## ") == 1 { within = index($0, head) == 1; next } within' CHANGELOG.md)
if [[ -z $notes ]] || ! grep -qE "^## ${VERSION//./\\.} \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$" CHANGELOG.md; then
    echo "notes: CHANGELOG.md has no dated section of version $VERSION" >&2
    exit 1
fi
# A relative link has no colon.
sed -E "s|\]\(([^):#][^):]*)\)|](${URL}/\1)|g" <<< "$notes"
