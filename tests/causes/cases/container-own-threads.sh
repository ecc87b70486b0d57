# SPDX-License-Identifier: Apache-2.0
# Two programs of one container share a CPU, beside another container on the other CPU. The twin: one program.
packages=gcc
skip_unless="$HAS_CPU_GROUPS && [ \$(nproc) -ge 2 ]"
kind='preempted|run-queue|cpu-saturated'
text='container 55c3ebf2608a .*with (merge of the same container|container 55c3ebf2608a)'
prepare() {
    binary=$(program busy.c)
    crowded=$(container 55c3ebf2608a4ad87f302b1cae9d8c7b6a5955c3ebf2608a4ad87f302b1cae9d)
    other=$(container 44b2dae15f8039c76e2f1a0b9d8c7b6a594844b2dae15f8039c76e2f1a0b9d8c)
}
# The second program has more weight, so that the first one's waits come first.
beside() { # NICENESS OF THE SECOND PROGRAM; none: there is no second one
    (run_in_container "$other" "$binary" other 1 0 3 7 "$SECONDS_OF_RUN") &
    echo $! > "$WORK/pids"
    if [ -n "$1" ]; then
        (run_in_container "$crowded" nice -n "$1" "$binary" merge 1 1 1000 0 "$SECONDS_OF_RUN") &
        echo $! >> "$WORK/pids"
    fi
    echo "$BASHPID" > "$WORK/target"
    run_in_container "$crowded" "$binary" lookup 1 1 5 5 "$SECONDS_OF_RUN"
}
cause() { beside -5; }
twin() { beside ''; }
target() { target_with_thread lookup > /dev/null && echo "-p $(< "$WORK/target"),$(paste -sd , "$WORK/pids")"; }
clean() { remove_containers; }
