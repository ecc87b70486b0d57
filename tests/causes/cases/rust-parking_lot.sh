# SPDX-License-Identifier: Apache-2.0
# parking_lot's Mutex, held for 20 ms by a thread that sleeps meanwhile.
packages=
skip_unless='command -v cargo'
kind=lock-wait
text='orders of locks waited for (a )?lock in locks::change_parking_lot .*audit (held it|released it)'
prepare() { rust_programs; }
cause() { run_as_target "$BUILT/rust/release/locks" parking_lot slow "$SECONDS_OF_RUN"; }
twin() { run_as_target "$BUILT/rust/release/locks" parking_lot quick "$SECONDS_OF_RUN"; }
