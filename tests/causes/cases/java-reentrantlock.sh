# SPDX-License-Identifier: Apache-2.0
# ReentrantLock, held for 20 ms by a thread that sleeps meanwhile. Java's functions have names once jcmd has
# written them down, if they are compiled; -Xcomp compiles each at its first call.
packages="openjdk-17-jdk-headless|openjdk-21-jdk-headless"
kind=lock-wait
text='orders (and another thread )?of java waited for a lock .*audit held it, itself off the CPU .*wait in'
prepare() { classes=$(program Locks.java); }
cause() { run_as_target java -Xcomp -XX:TieredStopAtLevel=1 -XX:+PreserveFramePointer -cp "$classes" Locks reentrant slow "$SECONDS_OF_RUN"; }
twin() { run_as_target java -Xcomp -XX:TieredStopAtLevel=1 -XX:+PreserveFramePointer -cp "$classes" Locks reentrant quick "$SECONDS_OF_RUN"; }
target() {
    local pid
    [ -s "$WORK/target" ] || return 1
    pid=$(< "$WORK/target")
    jcmd "$pid" Compiler.perfmap > /dev/null 2>&1
    grep -q 'Locks.changeTable' "/tmp/perf-$pid.map" && echo "-p $pid"
}
clean() { rm -f "/tmp/perf-$(< "$WORK/target").map"; }
