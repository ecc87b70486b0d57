#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Packs the release in target/release (RELEASE: another folder) into target/packages: a tar.gz, a .deb, an OCI image,
# a bill of materials (CycloneDX) and SHA256SUMS. All timestamps are that of the last commit (SOURCE_DATE_EPOCH:
# another timestamp), so that the same commit gives the same bytes.
#
# Needs cargo-deb and cargo-cyclonedx in the versions of the Makefile (make packaging-tools), jq, python3, xz-utils and
# dpkg-dev.
set -euo pipefail
cd "$(dirname "$0")/.."

# The same bytes for each user: files are sorted by bytes, and each may be read.
export LC_ALL=C TZ=UTC
umask 022

readonly OUT=$PWD/target/packages
readonly STAGE=$PWD/target/packages/stage
readonly RELEASE=${RELEASE:-target/release}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

fail() {
    echo "packages: $*" >&2
    exit 1
}

# Another version may write other bytes.
check_tool() { # COMMAND VARIABLE OF THE MAKEFILE
    local wanted found
    wanted=$(sed -n "s/^$2 := //p" Makefile)
    found=$(cargo "$1" --version 2> /dev/null | awk '{ print $NF }') || true
    [[ -n $wanted && $found == "$wanted" ]] ||
        fail "cargo-$1 $wanted is needed, and ${found:-none} is here: make packaging-tools, then run make packages again"
}

# A gzip file without a name and a time.
packed() { gzip -9n; }

# A tar file of the folder $1, whose parent is $2.
tar_of() { # NAME PARENT
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --mode=u+rw,go=rX \
        --format=gnu --directory="$2" "$1"
}

# Licences and notices of all parts of the binary. NOTICE ends with the sources of what is linked from this machine.
stage_licences() { # FOLDER
    install -d "$1/LICENSES"
    cp LICENSE NOTICE THIRD-PARTY "$1/"
    cp LICENSES/*.txt "$1/LICENSES/"
    {
        printf '\n%80s\n' '' | tr ' ' =
        printf 'Debian source packages of the libraries that this binary was linked with\n'
        printf '%80s\n\n' '' | tr ' ' -
        dpkg-query -W -f '${source:Package} ${source:Version}\n' libelf-dev libc6-dev zlib1g-dev | sort
    } >> "$1/NOTICE" || fail 'libelf-dev, libc6-dev and zlib1g-dev are not installed: make build-packages'
}

# With the pictures and the sources that the pages refer to. tests/packages finds a link that leads nowhere.
stage_pages() { # FOLDER
    cp README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md SECURITY.md "$1/"
    git ls-files -z contrib docs include crates/span/examples crates/recording/sql/tables.sql \
        crates/page/web/vendor/uplot/ORIGIN.md tests/kubernetes/run.sh | xargs -0 cp --parents -t "$1"
}

stage_archive() { # FOLDER
    install -D "$RELEASE/wallprof" "$1/bin/wallprof"
    install -d "$1/share/man/man1" "$1/share/bash-completion/completions" "$1/share/zsh/site-functions" \
        "$1/share/fish/vendor_completions.d"
    install -m 644 "$RELEASE"/man/*.1 "$1/share/man/man1/"
    install -m 644 "$RELEASE/completions/wallprof.bash" "$1/share/bash-completion/completions/wallprof"
    install -m 644 "$RELEASE/completions/_wallprof" "$1/share/zsh/site-functions/"
    install -m 644 "$RELEASE/completions/wallprof.fish" "$1/share/fish/vendor_completions.d/"
    stage_pages "$1"
    cp -r "$STAGE/licences/." "$1/"
    cp "$OUT/$name.cdx.json" "$1/bom.cdx.json"
}

# The unit of contrib, for the files of the package.
stage_debian() { # FOLDER
    local doc=$1/doc
    install -d "$1" "$doc" "$1/units" "$1/man"
    install "$RELEASE/wallprof" "$1/"
    cp "$RELEASE"/man/*.1 "$1/man/"
    cp "$RELEASE"/completions/{wallprof.bash,_wallprof,wallprof.fish} "$1/"
    sed -e '/^#   cp /,/^#   curl /d' -e 's|/usr/local/bin/wallprof|/usr/bin/wallprof|' contrib/wallprof.service \
        > "$1/units/wallprof.service"
    grep -q '^ExecStart=/usr/bin/wallprof watch --config' "$1/units/wallprof.service" ||
        fail 'contrib/wallprof.service has another command: mend packaging/build.sh'
    cp contrib/wallprof.toml "$1/"
    printf 'wallprof (%s-1) unstable; urgency=medium\n\n  * What has changed: /usr/share/doc/wallprof/changelog.gz\n\n -- %s  %s\n' \
        "$version" "$(sed -n 's/^maintainer = "\(.*\)"/\1/p' crates/wallprof/Cargo.toml)" \
        "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" > "$1/changelog"
    stage_pages "$doc"
    cp -r "$STAGE/licences/." "$doc/"
    packed < CHANGELOG.md > "$doc/changelog.gz"
}

# The crates of the binary with their versions, licences and sums. Its number and time are those of the commit.
write_bom() {
    cargo cyclonedx --manifest-path crates/wallprof/Cargo.toml --format json --spec-version 1.5 --target x86_64-unknown-linux-gnu \
        --no-build-deps --override-filename bom-of-wallprof > /dev/null 2>&1 || fail 'cargo cyclonedx failed'
    jq --arg time "$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)" --arg root "path+file://$PWD/" \
        'del(.serialNumber) | .metadata.timestamp = $time
         | walk(if type == "string" then split($root) | join("path+file:///wallprof/") else . end)' \
        crates/wallprof/bom-of-wallprof.json > "$1"
    find crates -name 'bom-of-wallprof.json' -delete
    ! grep -qF "$PWD" "$1" || fail 'the bill of materials names this folder'
}

[[ -x $RELEASE/wallprof ]] || fail "$RELEASE/wallprof is not there: make release"
version=$("$RELEASE/wallprof" --version | awk '{ print $2 }')
name=wallprof-$version-x86_64-linux
check_tool deb CARGO_DEB
check_tool cyclonedx CARGO_CYCLONEDX
rm -rf "$OUT"
mkdir -p "$STAGE/debian"

write_bom "$OUT/$name.cdx.json"
stage_licences "$STAGE/licences"
stage_archive "$STAGE/$name"
tar_of "$name" "$STAGE" | packed > "$OUT/$name.tar.gz"

stage_debian "$STAGE/debian"
cargo deb --quiet --package wallprof --no-build --no-strip --output "$OUT/wallprof_$version-1_amd64.deb"

python3 packaging/oci.py "$RELEASE/wallprof" "$STAGE/licences" "$version" "$OUT/$name.oci.tar"

rm -rf "$STAGE"
cd "$OUT"
sha256sum -- * > SHA256SUMS
cat SHA256SUMS
