// SPDX-License-Identifier: Apache-2.0
//! Busy with collections, formatting, threads and locks; time in the program, std and libc.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Debug)]
struct Order {
    name: String,
    price: f64,
}

fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *seed >> 33
}

fn orders(seed: &mut u64) -> Vec<Order> {
    (0..200).map(|_| Order { name: format!("order-{}", next(seed)), price: next(seed) as f64 / 7.0 }).collect()
}

fn book(orders: &[Order]) -> BTreeMap<String, f64> {
    let mut by_name: HashMap<&str, f64> = HashMap::new();
    orders.iter().for_each(|order| *by_name.entry(&order.name).or_default() += order.price);
    by_name.into_iter().map(|(name, price)| (name.to_uppercase(), price)).collect()
}

fn fails(seed: u64) -> Result<u64, Box<dyn std::any::Any + Send>> {
    std::panic::catch_unwind(move || if seed % 2 == 0 { panic!("even") } else { seed })
}

fn main() {
    std::panic::set_hook(Box::new(|_| ()));
    let total = Arc::new(Mutex::new(0usize));
    let (sender, receiver) = channel::<Vec<Order>>();
    let counted = Arc::clone(&total);
    std::thread::spawn(move || {
        for orders in receiver {
            let text: String = orders.iter().map(|order| format!("{order:?}")).collect();
            *counted.lock().unwrap() += text.len();
        }
    });
    let mut seed = 42;
    loop {
        let mut batch = orders(&mut seed);
        batch.sort_by(|a, b| a.price.total_cmp(&b.price));
        *total.lock().unwrap() += book(&batch).len() + fails(next(&mut seed)).is_ok() as usize;
        sender.send(batch).unwrap();
        std::thread::sleep(Duration::from_micros(100));
    }
}
