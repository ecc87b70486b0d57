# SPDX-License-Identifier: Apache-2.0
# A container computes on a CPU that a thread of another container wants half of. The twin: on another CPU.
packages=gcc
skip_unless="$HAS_CPU_GROUPS && [ \$(nproc) -ge 2 ]"
kind='preempted|run-queue|cpu-saturated'
text='container 33a1c9d04e7f .*with (merge of )?container 44b2dae15f80'
prepare() {
    binary=$(program busy.c)
    waiting=$(container 33a1c9d04e7f28b65d1e0f9a8c7b6a59483733a1c9d04e7f28b65d1e0f9a8c7b)
    greedy=$(container 44b2dae15f8039c76e2f1a0b9d8c7b6a594844b2dae15f8039c76e2f1a0b9d8c)
    weigh_cpu "$greedy" 4
}
beside() { # CPU
    (run_in_container "$greedy" "$binary" merge 1 "$1" 1000 0 "$SECONDS_OF_RUN") &
    echo $! > "$WORK/greedy"
    echo "$BASHPID" > "$WORK/target"
    run_in_container "$waiting" "$binary" lookup 1 1 5 5 "$SECONDS_OF_RUN"
}
cause() { beside 1; }
twin() { beside 0; }
target() { target_with_thread lookup > /dev/null && echo "-p $(< "$WORK/target"),$(< "$WORK/greedy")"; }
clean() { remove_containers; }
