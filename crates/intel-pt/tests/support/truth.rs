// SPDX-License-Identifier: Apache-2.0
//! The truth of a synthetic recording.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub is_call: bool,
    pub from: u64,
    pub to: u64,
    pub ticks: u64,
}

/// The calls and returns of one thread, and the number of them before each loss.
pub struct Truth {
    pub transfers: Vec<Transfer>,
    pub losses: Vec<usize>,
}

impl Truth {
    pub fn parse(text: &[u8]) -> Truth {
        let mut truth = Truth { transfers: Vec::new(), losses: Vec::new() };
        for line in std::str::from_utf8(text).unwrap().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let address = |index: usize| u64::from_str_radix(words[index], 16).unwrap();
            let ticks = words.last().unwrap().parse().unwrap();
            match words[0] {
                "C" | "R" => {
                    let is_call = words[0] == "C";
                    truth.transfers.push(Transfer { is_call, from: address(1), to: address(2), ticks });
                }
                "L" => truth.losses.push(truth.transfers.len()),
                _ => {}
            }
        }
        truth
    }
}
