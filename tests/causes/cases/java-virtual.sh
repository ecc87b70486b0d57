# SPDX-License-Identifier: Apache-2.0
# Virtual threads that sleep in `synchronized`, and so keep their carriers (before JDK 24). In the twin they sleep
# outside of it: the carriers are free, and idle. JAVA21 is the folder of a JDK 21 to 23.
packages="openjdk-17-jdk-headless|openjdk-21-jdk-headless"
skip_unless='"${JAVA21:+$JAVA21/bin/}java" -version 2>&1 | grep -E "version \"2[123]"'
kind=lock-wait
text='of java .*waited for a pinned virtual thread'
prepare() { classes=$(program Virtual.java); }
cause() { run_as_target "${JAVA21:+$JAVA21/bin/}java" -cp "$classes" Virtual pinned "$SECONDS_OF_RUN"; }
twin() { run_as_target "${JAVA21:+$JAVA21/bin/}java" -cp "$classes" Virtual parked "$SECONDS_OF_RUN"; }
target() { target_with_thread ForkJoinPool-1-; }
