# SPDX-License-Identifier: Apache-2.0
# Tasks of a pool that hold a ReentrantLock for 20 ms each, beside pools of all kinds with little to do, whose workers
# are parked by the same functions. None of those waits for a lock.
packages="openjdk-17-jdk-headless|openjdk-21-jdk-headless"
kind=lock-wait
text='threads of java named orders waited for a lock in Pools.changeTable .*they held it in turn, .*sleep in Pools.rest'
prepare() { classes=$(program Pools.java); }
cause() { run_as_target java -cp "$classes" Pools locked "$SECONDS_OF_RUN"; }
twin() { run_as_target java -cp "$classes" Pools idle "$SECONDS_OF_RUN"; }
target() { target_with_thread orders; }
