# SPDX-License-Identifier: Apache-2.0
# A heap that is too small for a table that changes all the time: each collection stops all threads.
packages="openjdk-17-jdk-headless|openjdk-21-jdk-headless"
kind=lock-wait
text='of java waited for (garbage collection|safepoint) .* VM Thread held it'
prepare() { classes=$(program Garbage.java); }
cause() { run_as_target java -Xmx256m -XX:+UseSerialGC -cp "$classes" Garbage large "$SECONDS_OF_RUN"; }
twin() { run_as_target java -Xmx256m -XX:+UseSerialGC -cp "$classes" Garbage small "$SECONDS_OF_RUN"; }
target() { target_with_thread orders; }
