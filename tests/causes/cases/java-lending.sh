# SPDX-License-Identifier: Apache-2.0
# Orders wait for one of two pooled connections, which reports keep for 30 ms at a time.
packages="openjdk-17-jdk-headless|openjdk-21-jdk-headless libcommons-pool2-java"
kind=lock-wait
text='order-. and . other threads of java waited for a pooled connection in Lending.takeOrder .*: (of several threads )?report-. had one.*sleep in Lending.rest.* gave it back in Lending.runReport'
export CLASSPATH=/usr/share/java/commons-pool2.jar
prepare() { classes=$(program Lending.java); }
cause() { run_as_target java -cp "$classes:$CLASSPATH" Lending few "$SECONDS_OF_RUN"; }
twin() { run_as_target java -cp "$classes:$CLASSPATH" Lending enough "$SECONDS_OF_RUN"; }
target() { target_with_thread order-3; }
