# SPDX-License-Identifier: Apache-2.0
# Virtual threads that sleep in `synchronized`, and so keep their carriers (before JDK 24). In the twin they sleep
# outside of it: the carriers are free, and idle. Java's functions have names once jcmd has written them down.
# JAVA21 is the folder of a JDK 21 to 23.
packages="openjdk-17-jdk-headless|openjdk-21-jdk-headless"
skip_unless='"${JAVA21:+$JAVA21/bin/}java" -version 2>&1 | grep -E "version \"2[123]"'
kind=lock-wait
text='of java .*waited for a pinned virtual thread'
prepare() { classes=$(program Virtual.java); }
cause() { run_as_target "${JAVA21:+$JAVA21/bin/}java" -cp "$classes" Virtual pinned "$SECONDS_OF_RUN"; }
twin() { run_as_target "${JAVA21:+$JAVA21/bin/}java" -cp "$classes" Virtual parked "$SECONDS_OF_RUN"; }
target() {
    local pid
    [ -s "$WORK/target" ] || return 1
    pid=$(< "$WORK/target")
    "${JAVA21:+$JAVA21/bin/}jcmd" "$pid" Compiler.perfmap > /dev/null 2>&1
    grep -q 'Continuation.enterSpecial' "/tmp/perf-$pid.map" && echo "-p $pid"
}
clean() { rm -f "/tmp/perf-$(< "$WORK/target").map"; }
