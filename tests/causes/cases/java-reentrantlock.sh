# SPDX-License-Identifier: Apache-2.0
# ReentrantLock, held for 20 ms by a thread that sleeps meanwhile. The virtual machine has no options for profilers.
packages="openjdk-17-jdk-headless|openjdk-21-jdk-headless"
kind=lock-wait
text='orders (and another thread )?of java waited for a lock in Locks.changeTable .*audit held it, itself off the CPU .*sleep in'
prepare() { classes=$(program Locks.java); }
cause() { run_as_target java -cp "$classes" Locks reentrant slow "$SECONDS_OF_RUN"; }
twin() { run_as_target java -cp "$classes" Locks reentrant quick "$SECONDS_OF_RUN"; }
target() { target_with_thread orders; }
