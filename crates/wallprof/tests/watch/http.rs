// SPDX-License-Identifier: Apache-2.0
//! One request over TCP, and its answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Answer {
    pub status: u16,
    pub body: String,
}

/// Sends `METHOD path`, and reads the answer to its end.
pub fn request(address: SocketAddr, method: &str, path: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("sent");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: a head in {text}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        unchunked(body)
    } else {
        body.to_string()
    };
    Answer { status: status.unwrap_or_else(|| panic!("a status in {head}")), body }
}

pub fn get(address: SocketAddr, path: &str) -> Answer {
    request(address, "GET", path)
}

/// RFC 9112, 7.1, of text that ends as it should.
fn unchunked(mut text: &str) -> String {
    let mut body = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).expect("a size of a chunk");
        body.push_str(&rest[..size]);
        text = rest[size..].trim_start_matches("\r\n");
        if size == 0 {
            break;
        }
    }
    body
}
