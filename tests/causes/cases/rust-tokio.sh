# SPDX-License-Identifier: Apache-2.0
# A task that sleeps as a thread does: the runtime's only worker stands still, and all tasks with it.
packages=
skip_unless='command -v cargo'
kind=blocked-loop
text='tokio-rt-worker.* did not return to its wait for work .*the task .*resize_images'
prepare() { rust_programs; }
cause() { run_as_target "$BUILT/rust/release/runtime" blocking "$SECONDS_OF_RUN"; }
twin() { run_as_target "$BUILT/rust/release/runtime" awaiting "$SECONDS_OF_RUN"; }
