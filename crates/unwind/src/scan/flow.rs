// SPDX-License-Identifier: Apache-2.0
//! Follows frames along the jumps of a window of functions.

use std::collections::HashMap;

use super::frame::Frame;
use super::instruction::{Effect, Flow, Found, Instructions, Mark};
use crate::rule::Rule;

/// Limit on followed instructions that determine the depth of stacks, for each instruction of the window.
const LOOKS: usize = 16;
/// From a cleared frame pointer to the `hlt` behind the call of a thread's function.
const MAX_THREAD_START: usize = 12;

pub(super) struct Window<'s> {
    found: Vec<Found>,
    /// The starts of functions: in all the code, and in this window.
    starts: &'s [u64],
    own_starts: &'s [u64],
    entered: &'s HashMap<u64, Frame>,
    frames: Vec<Option<Frame>>,
    /// By instruction, the number of the last look ahead that met it.
    met: Vec<u32>,
    last_look: u32,
    /// What remains of `LOOKS`.
    looks: usize,
    /// Likely starts of functions.
    entries: Vec<usize>,
    /// Starts of loops that are reached again with another stack. No compiler writes that.
    distrusted: Vec<usize>,
}

impl<'s> Window<'s> {
    /// Reads the code at `address`, which is `entered` from elsewhere, also at other places than the starts
    /// of functions. Decoding restarts at each function, so that data in between affect only the code that
    /// they seem to be.
    pub(super) fn read(
        code: &[u8],
        address: u64,
        starts: &'s [u64],
        entered: &'s HashMap<u64, Frame>,
    ) -> Self {
        let mut found = Vec::with_capacity(code.len() / 4);
        let end = address + code.len() as u64;
        let first = starts.partition_point(|&start| start < address);
        let own_starts = &starts[first..starts.partition_point(|&start| start < end).max(first)];
        let mut from = address;
        for &to in own_starts.iter().chain([&end]) {
            if from < to {
                let part = &code[(from - address) as usize..(to - address) as usize];
                let first = found.len();
                found.extend(Instructions::new(part, from));
                found[first].starts = own_starts.binary_search(&from).is_ok();
            }
            from = to;
        }
        let (frames, met, looks) = (vec![None; found.len()], vec![0; found.len()], LOOKS * found.len());
        let (entries, distrusted, last_look) = (vec![], vec![], 0);
        Window { found, starts, own_starts, entered, frames, met, last_look, looks, entries, distrusted }
    }

    /// The jumps to places that are neither in the window nor the start of a function, with their frames.
    pub(super) fn jumps_out(mut self, places: &mut HashMap<u64, Frame>) {
        self.follow_all();
        for (found, frame) in self.found.iter().zip(&self.frames) {
            let (Flow::Jump(target) | Flow::Branch(target), Some(frame)) = (found.flow, frame) else {
                continue;
            };
            if self.index_of(target).is_none() && !self.is_start(target) {
                places.entry(target).or_insert(frame.after(found.effect));
            }
        }
    }

    /// Emits to `row` the rules, ascending. Unknown code is left out.
    pub(super) fn rows(mut self, row: &mut impl FnMut(u64, u64, Rule)) {
        self.follow_all();
        let rules = self.rules();
        let mut at = 0;
        while let Some(first) = self.found.get(at) {
            let rule = rules[at];
            let run = rules[at..].iter().take_while(|other| **other == rule).count();
            let last = &self.found[at + run - 1];
            if rule != Rule::UNCOVERED {
                row(first.address, last.address + u64::from(last.len), rule);
            }
            at += run;
        }
    }

    fn rules(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> =
            self.frames.iter().map(|frame| frame.map_or(Rule::UNCOVERED, |frame| frame.rule())).collect();
        for at in 0..self.found.len() {
            if let Some(end) = self.thread_start(at) {
                rules[at..end].fill(Rule::END);
            } else if self.is_trampoline(at) {
                rules[at..at + 2].fill(Rule::SIGNAL);
                // A return to its first instruction is looked up a byte before.
                if at > 0 {
                    rules[at - 1] = Rule::SIGNAL;
                }
            }
        }
        rules
    }

    // --- frames ---

    fn follow_all(&mut self) {
        // Jump targets come first: they may be behind a call that does not return.
        for at in 0..self.found.len() {
            if let Some(&frame) = self.entered.get(&self.found[at].address) {
                self.follow(at, frame);
            }
        }
        for number in 0..self.own_starts.len() {
            if let Some(at) = self.index_of(self.own_starts[number]) {
                self.entries.push(at);
                self.follow(at, Frame::ENTRY);
            }
        }
        let mut switch = None;
        for at in 0..self.found.len() {
            if self.found[at].starts {
                switch = None;
            }
            if self.frames[at].is_none()
                && let Some(frame) = self.guess(at, switch)
            {
                if frame == Frame::ENTRY {
                    self.entries.push(at);
                }
                self.follow(at, frame);
            }
            if self.found[at].flow == Flow::IndirectJump {
                switch = self.frames[at];
            }
        }
        self.forget_what_is_not_called();
    }

    /// Fills in the code that is reached from `at`. Where two paths meet, the first frame stays.
    fn follow(&mut self, at: usize, frame: Frame) {
        let mut left = vec![(at, frame, 0)];
        while let Some((at, frame, comes_from)) = left.pop() {
            if let Some(known) = self.frames[at] {
                if known.sp != frame.sp && comes_from > at {
                    self.distrusted.push(at);
                }
                continue;
            }
            self.frames[at] = Some(frame);
            let after = frame.after(self.found[at].effect);
            let (target, goes_on) = self.leads_to(at);
            if let Some(target) = target {
                left.push((target, after, at));
            }
            if goes_on && !self.is_another_function(at, after) {
                left.push((at + 1, after, at));
            }
        }
    }

    /// Drops the frames of functions that are entered by other ways than calls, such as an interpreter's:
    /// loops change their stack, or they continue by indirect jumps only and never return.
    fn forget_what_is_not_called(&mut self) {
        self.entries.sort_unstable();
        self.entries.dedup();
        for number in 0..self.entries.len() {
            let first = self.entries[number];
            let last = self.entries.get(number + 1).copied().unwrap_or(self.found.len());
            let reached = self.found[first..last].iter().zip(&self.frames[first..last]);
            let ends = || reached.clone().filter(|(_, frame)| frame.is_some()).map(|(found, _)| found.flow);
            let dispatches = ends().any(|flow| flow == Flow::IndirectJump);
            let returns = ends().any(|flow| flow == Flow::Return);
            let is_distrusted = self.distrusted.iter().any(|at| (first..last).contains(at));
            if dispatches && !returns || is_distrusted {
                self.frames[first..last].fill(None);
            }
        }
    }

    /// Whether the code after a call is a function of its own, because the called function never returns. It
    /// has the start of a function, and its own returns confirm it.
    fn is_another_function(&mut self, call: usize, after: Frame) -> bool {
        if self.found[call].flow != Flow::Call || after.sp == Some(8) {
            return false;
        }
        let mut rest = self.found[call + 1..].iter().skip_while(|found| found.mark == Some(Mark::Pads));
        let Some(first) = rest.next() else { return false };
        let is_padded = first.address.is_multiple_of(16) && self.found[call + 1].mark == Some(Mark::Pads);
        let opens =
            matches!(first.effect, Effect::Push(_) | Effect::Grow(_)) || first.mark == Some(Mark::Lands);
        match (is_padded, opens) {
            (false, false) => false,
            (true, true) => self.look_ahead(call + 1) != after.sp,
            _ => self.look_ahead(call + 1) == Some(8),
        }
    }

    /// The jump targets of an instruction in this function, and whether execution can continue after it.
    fn leads_to(&self, at: usize) -> (Option<usize>, bool) {
        let Found { address, len, flow, .. } = self.found[at];
        let next = address + u64::from(len);
        let has_next = self.found.get(at + 1).is_some_and(|found| found.address == next && !found.starts);
        match flow {
            Flow::Next | Flow::Call => (None, has_next),
            Flow::Jump(target) => (self.inside(target), false),
            Flow::Branch(target) => (self.inside(target), has_next),
            Flow::IndirectJump | Flow::Return | Flow::Stop | Flow::NoCode => (None, false),
        }
    }

    fn inside(&self, target: u64) -> Option<usize> {
        self.index_of(target).filter(|&at| !self.found[at].starts)
    }

    fn is_start(&self, address: u64) -> bool {
        self.starts.binary_search(&address).is_ok()
    }

    fn index_of(&self, address: u64) -> Option<usize> {
        self.found.binary_search_by_key(&address, |found| found.address).ok()
    }

    /// The frame of code that no known jump reaches: a function that is called by its address, or a case of
    /// the last `switch` of this function.
    fn guess(&mut self, at: usize, switch: Option<Frame>) -> Option<Frame> {
        if self.found[at].flow == Flow::NoCode {
            return None;
        }
        match (switch, self.look_ahead(at)) {
            (None, None) if self.found[at].mark == Some(Mark::Pads) => None,
            (Some(case), None) => Some(case),
            (Some(case), Some(sp)) if case.sp == Some(sp) => Some(case),
            (None, None) | (_, Some(8)) => Some(Frame::ENTRY),
            (None, Some(sp)) => Some(Frame::of_sp(sp)),
            (Some(_), Some(_)) => None,
        }
    }

    /// The depth of the stack at `at` with which the code after it returns, or reaches a known depth.
    fn look_ahead(&mut self, at: usize) -> Option<i32> {
        // Relative to a depth from which it can pop.
        const BASE: i32 = 1 << 20;
        let mut left = vec![(at, Frame::of_sp(BASE))];
        self.last_look += 1;
        while let Some((at, frame)) = left.pop() {
            if self.met[at] == self.last_look || self.looks == 0 {
                continue;
            }
            self.met[at] = self.last_look;
            self.looks -= 1;
            let after = frame.after(self.found[at].effect);
            let depth_if = |end: Option<i32>| Some(end? - after.sp? + BASE).filter(|depth| *depth >= 8);
            let end = match self.found[at].flow {
                Flow::Return => depth_if(Some(8)),
                Flow::Jump(target) if self.is_start(target) => depth_if(Some(8)),
                _ => None,
            };
            if end.is_some() {
                return end;
            }
            let (target, goes_on) = self.leads_to(at);
            for next in target.into_iter().chain(goes_on.then_some(at + 1)) {
                match self.frames[next] {
                    Some(known) => {
                        if let Some(depth) = depth_if(known.sp) {
                            return Some(depth);
                        }
                    }
                    None => left.push((next, after)),
                }
            }
        }
        None
    }

    // --- starts and ends of stacks ---

    /// After a frame pointer is cleared, up to the `hlt` that is never reached: the start of a thread.
    fn thread_start(&self, at: usize) -> Option<usize> {
        if self.found[at].mark != Some(Mark::ClearsFp) {
            return None;
        }
        let rest = self.found[at..].iter().take(MAX_THREAD_START);
        let straight =
            rest.take_while(|found| matches!(found.flow, Flow::Next | Flow::Call) || found.mark.is_some());
        let mut calls = false;
        for (distance, found) in straight.enumerate() {
            calls |= found.flow == Flow::Call;
            if found.mark == Some(Mark::Halt) {
                return calls.then_some(at + distance + 1);
            }
        }
        None
    }

    /// mov $15,%eax; syscall, that no jump reaches.
    fn is_trampoline(&self, at: usize) -> bool {
        let [first, second] = [at, at + 1].map(|at| self.found.get(at).and_then(|found| found.mark));
        let alone = at == 0
            || self.found[at - 1].flow.is_last()
            || self.found[at - 1].mark == Some(Mark::Pads)
            || self.found[at].starts
            || self.frames[at - 1].is_none();
        first == Some(Mark::SigreturnNumber) && second == Some(Mark::SystemCall) && alone
    }
}
