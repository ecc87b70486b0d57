# SPDX-License-Identifier: Apache-2.0
# A thread sleeps while it has a Mutex, for which it never waits itself, and another one waits for it.
packages=ruby
kind='holder-blocked|lock-wait'
text='orders of ruby waited for a lock in (rb_mutex_synchronize|rb_mutex_lock) .*audit .*(asleep|sleep|wait)'
cause() { run_as_target ruby "$PROGRAMS/mutex.rb" held "$SECONDS_OF_RUN"; }
twin() { run_as_target ruby "$PROGRAMS/mutex.rb" free "$SECONDS_OF_RUN"; }
target() { target_with_thread orders; }
