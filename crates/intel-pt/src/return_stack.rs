// SPDX-License-Identifier: Apache-2.0
//! The return addresses to which a compressed return refers: the last 64 calls, as the processor keeps them
//! (SDM, "RET compression"). It is not the call stack: it is cleared at every PSB and never unwinds.

use crate::code::SpaceId;
use crate::run_cache::CallSite;

const DEPTH: usize = 64;

/// The return address of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReturnAddress {
    pub address: u64,
    pub site: CallSite,
    pub space: SpaceId,
}

#[derive(Clone, Debug)]
pub struct ReturnStack {
    ring: [ReturnAddress; DEPTH],
    top: usize,
    len: usize,
}

impl ReturnStack {
    pub fn new() -> ReturnStack {
        ReturnStack { ring: [ReturnAddress::default(); DEPTH], top: 0, len: 0 }
    }

    /// The oldest entry is evicted when the stack is full.
    #[inline]
    pub fn push(&mut self, entry: ReturnAddress) {
        self.top = (self.top + 1) % DEPTH;
        self.ring[self.top] = entry;
        self.len = (self.len + 1).min(DEPTH);
    }

    #[inline]
    pub fn pop(&mut self) -> Option<ReturnAddress> {
        self.len = self.len.checked_sub(1)?;
        let entry = self.ring[self.top];
        self.top = (self.top + DEPTH - 1) % DEPTH;
        Some(entry)
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: u64) -> ReturnAddress {
        ReturnAddress { address, ..ReturnAddress::default() }
    }

    #[test]
    fn the_last_64_calls_are_kept() {
        let mut stack = ReturnStack::new();
        (0..100).for_each(|address| stack.push(entry(address)));
        for address in (36..100).rev() {
            assert_eq!(stack.pop(), Some(entry(address)));
        }
        assert_eq!(stack.pop(), None);
        stack.push(entry(7));
        stack.clear();
        assert_eq!(stack.pop(), None);
    }
}
