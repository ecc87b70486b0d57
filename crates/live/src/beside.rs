// SPDX-License-Identifier: Apache-2.0
//! The recorder's threads run beside those that they record, and hold up neither these nor what these wait for.

use wallprof_probe::{KeptCpu, slices};
use wallprof_symbols::keep_cpu_by;

/// From now on the calling thread, and those that it starts, have short slices, and keep the CPU while they hold a
/// lock of another process.
pub fn run_beside_others() {
    slices::shorten();
    keep_cpu_by(|| Box::new(KeptCpu::take()));
}
