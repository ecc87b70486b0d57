// SPDX-License-Identifier: Apache-2.0
//! A tokio runtime with one worker, whose tasks answer each other every two milliseconds, beside rayon's pool and
//! a channel of crossbeam, which are idle.
//!
//! usage: runtime blocking|awaiting SECONDS. With `blocking`, one task sleeps 50 ms as a thread does, and the
//! worker with it; with `awaiting`, it awaits the same.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::sleep;

const PAUSE: Duration = Duration::from_millis(50);

#[inline(never)]
fn resize_image_blocking() {
    thread::sleep(PAUSE);
}

async fn resize_images(blocking: bool, ends: Instant) {
    while Instant::now() < ends {
        sleep(PAUSE).await;
        if blocking {
            resize_image_blocking();
        } else {
            sleep(PAUSE).await;
        }
    }
}

async fn ask(ends: Instant) {
    let (asks, mut asked) = mpsc::channel::<u64>(1);
    let (answers, mut answered) = mpsc::channel::<u64>(1);
    tokio::spawn(async move {
        while let Some(number) = asked.recv().await {
            if answers.send(number + 1).await.is_err() {
                return;
            }
        }
    });
    while Instant::now() < ends {
        asks.send(1).await.unwrap();
        answered.recv().await;
        sleep(Duration::from_millis(2)).await;
    }
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let blocking = arguments[1] == "blocking";
    let ends = Instant::now() + Duration::from_secs(arguments[2].parse().unwrap());
    rayon::ThreadPoolBuilder::new().num_threads(2).build_global().unwrap();
    rayon::join(|| (), || ());
    let (jobs, queue) = crossbeam_channel::unbounded::<u64>();
    let consumer = thread::spawn(move || queue.iter().count());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async move {
        let asking = tokio::spawn(ask(ends));
        let resizing = tokio::spawn(resize_images(blocking, ends));
        asking.await.unwrap();
        resizing.await.unwrap();
    });
    drop(jobs);
    consumer.join().unwrap();
}
