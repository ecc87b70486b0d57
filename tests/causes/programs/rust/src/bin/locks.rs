// SPDX-License-Identifier: Apache-2.0
//! Two threads, `orders` and `audit`, that change one table under a lock.
//!
//! usage: locks std|parking_lot slow|quick SECONDS. With `slow`, audit sleeps 20 ms while it holds the lock.

use std::env;
use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// One of them is used.
#[derive(Default)]
struct Table {
    std: std::sync::Mutex<u64>,
    parking_lot: parking_lot::Mutex<u64>,
}

#[inline(never)]
fn change_std(table: &Table, held: Duration) {
    let mut changes = table.std.lock().unwrap();
    *changes += 1;
    thread::sleep(held);
}

#[inline(never)]
fn change_parking_lot(table: &Table, held: Duration) {
    let mut changes = table.parking_lot.lock();
    *changes += 1;
    thread::sleep(held);
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let change = if arguments[1] == "std" { change_std } else { change_parking_lot };
    let slow = arguments[2] == "slow";
    let ends = Instant::now() + Duration::from_secs(arguments[3].parse().unwrap());
    let table = Arc::new(Table::default());
    let spawn = |name: &str, held: u64, pause: u64| {
        let table = Arc::clone(&table);
        let work = move || {
            while Instant::now() < ends {
                // Not inlined: the program's own function is to be seen.
                black_box(change)(&table, Duration::from_millis(held));
                thread::sleep(Duration::from_millis(pause));
            }
        };
        thread::Builder::new().name(name.into()).spawn(work).unwrap()
    };
    let orders = spawn("orders", 0, 2);
    let audit = spawn("audit", if slow { 20 } else { 0 }, if slow { 5 } else { 20 });
    orders.join().unwrap();
    audit.join().unwrap();
}
