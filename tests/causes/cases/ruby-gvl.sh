# SPDX-License-Identifier: Apache-2.0
# A thread with short requests beside one that computes: it waits up to 100 ms for the GVL each time.
packages=ruby
kind=lock-wait
text='requests.* waited for GVL .*(rb_nogvl|rb_vm_exec|libruby).* (report held it|they held it in turn)'
cause() { run_as_target ruby "$PROGRAMS/gvl.rb" busy "$SECONDS_OF_RUN"; }
twin() { run_as_target ruby "$PROGRAMS/gvl.rb" alone "$SECONDS_OF_RUN"; }
target() { target_with_thread requests; }
