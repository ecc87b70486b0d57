# SPDX-License-Identifier: Apache-2.0
# A control group may use 24 MiB; its program reads a file of 100 MiB through a mapping.
packages=python3
skip_unless='[ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ] || grep -qw memory /sys/fs/cgroup/cgroup.subtree_control'
kind="major-fault|memory-reclaim"
text='python3 .*memory.* its control group /wallprof-causes-.* used .* of its limit of 24.0 MiB'
prepare() {
    group=$(control_group memory)
    head -c 100M /dev/zero > "$WORK/table"
    sync "$WORK/table"
}
limit() { # BYTES
    if [ -e "$group/memory.high" ]; then
        echo "$1" > "$group/memory.high"
    else
        echo "$1" > "$group/memory.limit_in_bytes"
    fi
}
# Its pages are charged to the group that reads them first.
look_up() { # BYTES
    limit "$1"
    dd if="$WORK/table" iflag=nocache count=0 status=none
    (
        echo "$BASHPID" > "$group/cgroup.procs"
        exec cat "$WORK/table" > /dev/null
    )
    run_in_group_as_target "$group" "$DEBIAN_PYTHON" "$PROGRAMS/table.py" "$WORK/table" "$SECONDS_OF_RUN"
}
cause() { look_up 25165824; }
twin() { look_up 1073741824; }
clean() { rmdir "$group"; }
