// SPDX-License-Identifier: Apache-2.0
//! Clients of every kind at once: the watcher continues to watch.

use std::io::{Read, Write};
use std::net::TcpStream;

use wallprof_testkit::machine;

use crate::http;
use crate::watcher::{Watcher, value};

const CLIENTS: usize = 50;
const SCRAPES: usize = 40;

#[test]
fn scrapes_garbage_and_silence_at_once() {
    let Some(_guard) = machine::reserve("scrapes_garbage_and_silence_at_once") else { return };
    let watcher = Watcher::start(&["-a"]);
    let address = watcher.address;
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).expect("a port")).collect();
    let mut slow: Vec<_> = (0..10).map(|_| TcpStream::connect(address).expect("a port")).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(b"GET /metr").expect("sent"));
    let scrapers: Vec<_> = (0..CLIENTS)
        .map(|_| {
            std::thread::spawn(move || (0..SCRAPES).all(|_| http::get(address, "/metrics").status == 200))
        })
        .collect();
    for garbage in [&b"\x16\x03\x01\x02\x00\x01\r\n\r\n"[..], b"GET\r\n\r\n", b"\0\0\0\0\r\n\r\n"] {
        let mut stream = TcpStream::connect(address).expect("a port");
        stream.write_all(garbage).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    for scraper in scrapers {
        assert!(scraper.join().expect("no panic"), "every scrape is answered");
    }
    drop((silent, slow));
    // Seconds go on, and none was left out.
    let before = watcher.value("wallprof_self_cpu_seconds_total", &[]);
    let text = watcher.metrics_until(|text| value(text, "wallprof_self_cpu_seconds_total", &[]) > before);
    assert_eq!(value(&text, "wallprof_lost_total", &["seconds_not_written"]), 0.0);
}

#[test]
fn pages_are_there_for_people() {
    let Some(_guard) = machine::reserve("pages_are_there_for_people") else { return };
    let watcher = Watcher::start(&["-a"]);
    assert_eq!(http::get(watcher.address, "/-/healthy").status, 200);
    watcher.metrics_until(|text| value(text, "wallprof_oncpu_seconds_total", &[]) > 0.0);
    let page = http::get(watcher.address, "/").body;
    assert!(page.contains("all threads") && page.contains("/flame.svg"), "{page}");
    let found = page.split("<h2>What the last five minutes show</h2>").nth(1).expect("findings");
    assert!(found.starts_with("<p>No finding") || found.starts_with("<ol><li>"), "{page}");
    let flame = http::get(watcher.address, "/flame.svg");
    assert!(
        flame.status == 200 && flame.body.contains("<svg"),
        "{}",
        &flame.body[..200.min(flame.body.len())]
    );
    let report = http::get(watcher.address, "/report.html");
    assert!(
        report.status == 200 && report.body.contains("</html>"),
        "{}: {} bytes",
        report.status,
        report.body.len()
    );
    assert_eq!(http::get(watcher.address, "/nothing").status, 404);
}
