# SPDX-License-Identifier: Apache-2.0
# The life of the Debian package in a container with systemd as process 1: installed, used, started, upgraded, removed and
# purged while its service runs. The last line is the result.
# shellcheck source=tests/systemd/checks.sh
. /checks.sh

readonly CONFIG=/etc/wallprof.toml
readonly DEB=/files/new.deb OLDER_DEB=/files/older.deb

# All files and folders with kind, mode, owner and target, and the sums of those in /etc but for passwd's backups. Left out are other file
# systems (/proc, /sys, /dev, /run, /tmp), the journal, the notes of dpkg and apt, and the output of these tests.
files() {
    find / -xdev \( -path /var/log/journal -o -path /var/log/dpkg.log -o -path /var/log/apt -o -path /var/cache/apt \
        -o -path /var/lib/apt -o -path '/var/lib/dpkg/*-old' -o -path '/var/lib/dpkg/lock*' -o -path /inside.out -o -path '/*.db' -o -path /answer \) \
        -prune -o -printf '%p %y %M %U:%G %l\n' | sort
    find /etc -type f ! -name '*-' -exec cksum {} + | sort -k 3
}

# Runs a command of this root among the processes of the machine, as people record. Here the kernel's process numbers
# are others than those of /proc.
outside() { # COMMAND…
    rm -f /answer
    printf '%q ' "$@" >/ask.part
    mv /ask.part /ask
    until [[ -e /answer ]]; do sleep 0.1; done
    head -n -1 /answer
    return "$(tail -n 1 /answer)"
}

quietly() { # COMMAND…
    "$@" >/run/output 2>&1 || {
        cat /run/output
        return 1
    }
}
fails() { ! "$@" >/dev/null 2>&1; }
records() { # FILE
    quietly outside wallprof record -o "$1" -- sh -c 'for i in 1 2 3 4 5; do sleep 0.1; done' &&
        outside wallprof report "$1" >/run/report && grep -q sleep /run/report && grep -q '^Why threads' /run/report
}
# docs/install.md: As a service.
watch_everything() { sed -i 's/^# all = true/all = true/' $CONFIG; }
runs_program() { [[ $(readlink "/proc/$(value MainPID)/exe") == "$1" ]]; }
nothing_is_left() { diff <(echo "$before") <(files); }

check_install() {
    expect 'dpkg installs the package' quietly dpkg -i $DEB
    expect 'doctor finds all that recording needs' quietly outside wallprof doctor
    expect 'a program is recorded, and the report names it' records /own.db
    expect 'the service is not enabled' fails systemctl is-enabled wallprof
    watch_everything
    expect 'it is enabled and started' quietly systemctl enable --now wallprof
}

check_removal() {
    local pid
    expect 'it starts again' systemctl start wallprof
    expect 'and serves' within serves
    pid=$(value MainPID)
    expect 'it runs when the package is removed' is ActiveState active
    expect 'dpkg removes the package' quietly dpkg --remove wallprof
    expect 'removal stops the service' test ! -e "/proc/$pid"
    expect 'removal keeps the configuration' test -e $CONFIG
    expect 'removal keeps the recording' test -e "$RECORDING"
    expect 'dpkg purges the package' quietly dpkg --purge wallprof
    expect 'systemd knows no such service' is LoadState not-found
    expect 'nothing is left' nothing_is_left
}

# docs/install.md: Upgrading, removing.
check_upgrade() {
    local pid sum
    expect 'dpkg installs an older version' quietly dpkg -i $OLDER_DEB
    expect 'which has its number' test "$(dpkg-query -W -f '${Version}' wallprof)" = 0.0.9-1
    # doctor's advice for those who record without root.
    expect 'a group is made that alone may run it' quietly groupadd wallprof
    chgrp wallprof /usr/bin/wallprof && chmod 0750 /usr/bin/wallprof
    watch_everything
    echo '# a line of the user' >>$CONFIG
    sum=$(cksum $CONFIG)
    expect 'its service is enabled and started' quietly systemctl enable --now wallprof
    expect 'and serves' within serves
    expect 'it records a program' records /older.db
    pid=$(value MainPID)
    expect 'dpkg installs the new version over it' quietly dpkg -i $DEB
    expect 'an upgrade keeps the configuration' test "$(cksum $CONFIG)" = "$sum"
    expect 'an upgrade gives the program to all' test "$(stat -c %a:%G /usr/bin/wallprof)" = 755:root
    expect 'an upgrade leaves the service running' is MainPID "$pid"
    expect 'with the older program' runs_program '/usr/bin/wallprof (deleted)'
    expect 'which still serves' serves
    expect 'and answers the new wallprof ctl' answers
    expect 'the service is still enabled' quietly systemctl is-enabled wallprof
    expect 'it restarts' systemctl restart wallprof
    expect 'with the new program' runs_program /usr/bin/wallprof
    expect 'which serves' within serves
    expect 'the recording of the older version opens' opens /older.db
    expect 'and that of its service' opens "$RECORDING.old"
    expect 'dpkg purges a package whose service runs' quietly dpkg --purge wallprof
    expect 'purged, it does not run' fails pgrep -x wallprof
    expect 'its group is removed' quietly groupdel wallprof
    expect 'nothing is left' nothing_is_left
}

before=$(files)
check_install
check_service
check_removal
check_upgrade
conclude
