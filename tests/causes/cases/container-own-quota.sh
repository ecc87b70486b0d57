# SPDX-License-Identifier: Apache-2.0
# A container may use a twentieth of a CPU, and its thread wants half of one, beside another container.
packages=gcc
skip_unless="$HAS_CPU_GROUPS && [ \$(nproc) -ge 2 ]"
kind=cpu-throttling
planted=cpu-throttling
text='lookup .*could not run because its container 33a1c9d04e7f had used up its CPU quota \(5 %\)'
prepare() {
    binary=$(program busy.c)
    limited=$(container 33a1c9d04e7f28b65d1e0f9a8c7b6a59483733a1c9d04e7f28b65d1e0f9a8c7b)
    other=$(container 44b2dae15f8039c76e2f1a0b9d8c7b6a594844b2dae15f8039c76e2f1a0b9d8c)
}
beside() { # QUOTA
    limit_cpu "$limited" "$1"
    (run_in_container "$other" "$binary" other 1 0 1 9 "$SECONDS_OF_RUN") &
    echo $! > "$WORK/other"
    echo "$BASHPID" > "$WORK/target"
    run_in_container "$limited" "$binary" lookup 1 1 5 5 "$SECONDS_OF_RUN"
}
cause() { beside 5000; }
twin() { beside 100000; }
target() { target_with_thread lookup > /dev/null && echo "-p $(< "$WORK/target"),$(< "$WORK/other")"; }
clean() { remove_containers; }
