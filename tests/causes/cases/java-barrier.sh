# SPDX-License-Identifier: Apache-2.0
# Three threads of Java that meet at a CyclicBarrier after each step: one of them waits for its input in it. The barrier
# hands its lock on, so that each waiter but one is woken by another waiter.
packages="openjdk-17-jdk-headless|openjdk-21-jdk-headless"
kind=barrier-wait
text='part-[01] and another thread of java waited for the other threads at a barrier in Steps.solve .*: part-2 came last, while part-2 was mostly in sleep in Steps.loadInput'
prepare() { classes=$(program Steps.java); }
cause() { run_as_target java -cp "$classes" Steps uneven "$SECONDS_OF_RUN"; }
twin() { run_as_target java -cp "$classes" Steps even "$SECONDS_OF_RUN"; }
target() { target_with_thread part-2; }
