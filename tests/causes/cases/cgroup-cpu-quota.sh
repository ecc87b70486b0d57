# SPDX-License-Identifier: Apache-2.0
# A control group may use a twentieth of a CPU; its thread wants half of one.
packages=gcc
skip_unless='[ -e /sys/fs/cgroup/cpu/cpu.cfs_quota_us ] || grep -qw cpu /sys/fs/cgroup/cgroup.subtree_control'
kind=cpu-throttling
# The quota.
planted=cpu-throttling
text='pricing could not run because its control group /wallprof-causes-.* had used up its CPU quota \(5 %\)'
prepare() {
    binary=$(program burn.c)
    group=$(control_group cpu)
}
quota() { # MICROSECONDS OF 100000
    if [ -e "$group/cpu.max" ]; then
        echo "$1 100000" > "$group/cpu.max"
    else
        echo 100000 > "$group/cpu.cfs_period_us"
        echo "$1" > "$group/cpu.cfs_quota_us"
    fi
}
cause() {
    quota 5000
    run_in_group_as_target "$group" "$binary" "$SECONDS_OF_RUN"
}
twin() {
    quota 100000
    run_in_group_as_target "$group" "$binary" "$SECONDS_OF_RUN"
}
target() { target_with_thread pricing; }
clean() { rmdir "$group"; }
