# SPDX-License-Identifier: Apache-2.0
# A thread that computes beside threads that sleep for 5 ms and one that takes from a queue: after each sleep they wait
# for the GVL, one after the other, for as long as the thread that computes may keep it.
packages=ruby
kind=lock-wait
text='of ruby waited for GVL .*: report held it'
cause() { run_as_target ruby "$PROGRAMS/sleepers.rb" busy "$SECONDS_OF_RUN"; }
twin() { run_as_target ruby "$PROGRAMS/sleepers.rb" alone "$SECONDS_OF_RUN"; }
target() { target_with_thread timer; }
