# SPDX-License-Identifier: Apache-2.0
# A server of Java with one event loop, whose handler sleeps in it now and then. A sleep of Java is a wait with a timeout
# to the kernel, as an idle wait is.
packages="openjdk-17-jdk-headless|openjdk-21-jdk-headless"
kind=blocked-loop
text='io-loop of java did not return to epoll_wait .*: its event loop was asleep in Loop.answer, inside Loop.lookUpCustomer'
prepare() { classes=$(program Loop.java); }
cause() { run_as_target java -cp "$classes" Loop blocked "$SECONDS_OF_RUN"; }
twin() { run_as_target java -cp "$classes" Loop free "$SECONDS_OF_RUN"; }
target() { target_with_thread io-loop; }
