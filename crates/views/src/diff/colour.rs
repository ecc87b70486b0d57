// SPDX-License-Identifier: Apache-2.0
//! Colours of differences.

/// From pale to deep by `depth`, 0 to 1; red for longer times, blue for shorter ones.
pub(super) fn colour(depth: f64, is_longer: bool) -> String {
    let depth = 0.25 + 0.75 * depth.clamp(0.0, 1.0);
    let deep = if is_longer { [214.0, 39.0, 40.0] } else { [31.0, 105.0, 200.0] };
    let [red, green, blue] = deep.map(|channel: f64| (255.0 - (255.0 - channel) * depth).round() as u8);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// The colour of boxes without a difference.
pub(super) const GREY: &str = "#dedbd5";
