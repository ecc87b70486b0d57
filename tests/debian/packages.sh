# SPDX-License-Identifier: Apache-2.0
# Debian's packages of this release and the next, through a list of sources of our own: nothing is installed.
# Sourced by scripts that set STORE, a folder for lists and settings, and define say.

readonly APT=$STORE/apt
readonly ARCHIVE=http://deb.debian.org/debian
readonly KEYS=/usr/share/keyrings/debian-archive-keyring.gpg

write_apt_settings() {
    mkdir -p "$APT/lists/partial" "$APT/archives/partial"
    cat > "$APT/sources.list" <<-END
	deb [arch=amd64 signed-by=$KEYS] $ARCHIVE bookworm main
	deb [arch=amd64 signed-by=$KEYS] $ARCHIVE-security bookworm-security main
	deb [arch=amd64 signed-by=$KEYS] $ARCHIVE trixie main
	deb [arch=amd64 signed-by=$KEYS] $ARCHIVE trixie-backports main
	END
    cat > "$APT/apt.conf" <<-END
	Dir::State "$APT";
	Dir::State::Lists "$APT/lists";
	Dir::State::status "/dev/null";
	Dir::Cache "$APT";
	Dir::Etc::SourceList "$APT/sources.list";
	Dir::Etc::SourceParts "-";
	Acquire::Languages "none";
	Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
	APT::Sandbox::User "$(id -un)";
	END
}

# Updates the lists once a day. Without a network, the old ones are used.
refresh_lists() {
    write_apt_settings
    if [ -z "$(find "$APT/lists" -maxdepth 1 -name '*_Packages*' -mtime -1 -print -quit)" ]; then
        APT_CONFIG=$APT/apt.conf apt-get update -qq || say "no fresh lists of packages: using what is in $STORE"
    fi
}
