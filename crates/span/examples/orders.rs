// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handles orders with two stages each, until it is stopped: `cargo run --release --example orders`, and beside it
//! `wallprof record --name orders -d 5 && wallprof tail`.

use std::hint::black_box;
use std::thread::sleep;
use std::time::Duration;

use wallprof_span::span;

fn check_risk(number: u64) {
    let _stage = span!("risk check");
    (0..20_000u64).for_each(|step| {
        black_box(step);
    });
    // One order in two hundred asks another service, and waits for it.
    if number % 200 == 199 {
        sleep(Duration::from_millis(2));
    }
}

fn handle_order(number: u64) {
    let _order = span!("order");
    check_risk(number);
    let _stage = span!("match");
    (0..10_000u64).for_each(|step| {
        black_box(step);
    });
}

fn main() {
    for number in 0.. {
        handle_order(number);
        sleep(Duration::from_micros(500));
    }
}
