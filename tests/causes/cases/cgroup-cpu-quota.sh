# SPDX-License-Identifier: Apache-2.0
# A control group may use a twentieth of a CPU; its thread wants half of one.
packages=gcc
skip_unless=$HAS_CPU_GROUPS
kind=cpu-throttling
# The quota.
planted=cpu-throttling
text='pricing could not run because its control group /wallprof-causes-.* had used up its CPU quota \(5 %\)'
prepare() {
    binary=$(program burn.c)
    group=$(control_group cpu)
}
cause() {
    limit_cpu "$group" 5000
    run_in_group_as_target "$group" "$binary" "$SECONDS_OF_RUN"
}
twin() {
    limit_cpu "$group" 100000
    run_in_group_as_target "$group" "$binary" "$SECONDS_OF_RUN"
}
target() { target_with_thread pricing; }
clean() { rmdir "$group"; }
