// SPDX-License-Identifier: Apache-2.0
//! A sample's callchain, divided into the kernel's addresses and the thread's own.

use crate::format::attr::{Attr, sample};
use crate::format::record::misc;
use crate::format::sample::Sample;

/// Marks in callchains (`PERF_CONTEXT_*`): negative numbers above this one. The addresses behind a mark
/// belong to its context.
const FIRST_MARK: u64 = -4095i64 as u64;
const KERNEL: u64 = -128i64 as u64;
const USER: u64 = -512i64 as u64;
/// The default of `kernel.perf_event_max_stack`.
const DEFAULT_MAX_STACK: u16 = 127;

/// The numbers of branches that processors record. A stack with as many calls may be cut.
const LBR_DEPTHS: [usize; 3] = [8, 16, 32];

/// Addresses, leaf first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    pub kernel: Vec<u64>,
    pub user: Vec<u64>,
    /// The chain has the maximal length that was asked for, so it may be cut.
    pub full: bool,
}

/// Without a callchain the sample's address alone is the stack. A stack of calls that the processor recorded
/// takes the place of the thread's own part.
pub(crate) fn chain_from_sample(attr: &Attr, mode: u16, taken: &Sample<'_>) -> Chain {
    let mut chain = chain_of_kernel(attr, mode, taken);
    if attr.has_call_stacks()
        && let Some(newest) = taken.branches().next()
    {
        // In the kernel the last call of the thread shows in which function it is.
        let leaf = taken.ip.filter(|_| mode == misc::USER).unwrap_or(newest.1);
        let calls = taken.branches().map(|(from, _)| from).filter(|from| from >> 63 == 0);
        // The address of a call stands for its return address, which is behind it.
        chain.user = std::iter::once(leaf).chain(calls.map(|from| from.saturating_add(1))).collect();
        chain.full = LBR_DEPTHS.contains(&taken.branches().count());
    }
    chain
}

/// By the kernel's walk.
fn chain_of_kernel(attr: &Attr, mode: u16, taken: &Sample<'_>) -> Chain {
    let mut chain = Chain::default();
    if !attr.has(sample::CALLCHAIN) || taken.callchain.is_empty() {
        match (mode, taken.ip) {
            (misc::KERNEL, Some(ip)) => chain.kernel.push(ip),
            (misc::USER, Some(ip)) => chain.user.push(ip),
            _ => {}
        }
        return chain;
    }
    let mut context = if mode == misc::KERNEL { KERNEL } else { USER };
    for address in taken.chain() {
        match context {
            _ if address >= FIRST_MARK => context = address,
            KERNEL => chain.kernel.push(address),
            USER => chain.user.push(address),
            // Of a virtual machine, or of a hypervisor.
            _ => {}
        }
    }
    let limit = if attr.max_stack == 0 { DEFAULT_MAX_STACK } else { attr.max_stack };
    chain.full = chain.kernel.len() + chain.user.len() >= usize::from(limit);
    chain
}

#[cfg(test)]
mod tests {
    use wallprof_intel_pt::generator::record;

    use super::*;

    fn divided(mode: u16, max_stack: u64, addresses: &[u64]) -> Chain {
        let attr = Attr::from_bytes(&record::attr(128, &[(24, sample::CALLCHAIN), (108, max_stack)]));
        let words = record::words(addresses);
        chain_from_sample(&attr, mode, &Sample { callchain: &words, ip: Some(5), ..Sample::default() })
    }

    #[test]
    fn marks_divide_the_chain() {
        let chain = divided(misc::KERNEL, 0, &[KERNEL, 1, 2, USER, 3, -2048i64 as u64, 9]);
        assert_eq!((chain.kernel, chain.user, chain.full), (vec![1, 2], vec![3], false));
    }

    #[test]
    fn without_marks_the_mode_decides() {
        assert_eq!(divided(misc::KERNEL, 0, &[1, 2]).kernel, [1, 2]);
        assert_eq!(divided(misc::USER, 0, &[1, 2]).user, [1, 2]);
        assert_eq!(divided(misc::USER, 0, &[]).user, [5]);
        assert_eq!(divided(misc::KERNEL, 0, &[]).kernel, [5]);
    }

    /// The chain of a sample at `ip` in `mode`, with a chain of the kernel's walk, and branches of this type.
    fn with_branches(mode: u16, ip: u64, branch_type: u64, entries: &[[u64; 2]]) -> Chain {
        let types = sample::CALLCHAIN | sample::BRANCH_STACK;
        let attr = Attr::from_bytes(&record::attr(128, &[(24, types), (72, branch_type)]));
        let callchain = record::words(&[KERNEL, 0xffff_ffff_8100_0010, USER, 0x7f99, 0x1]);
        let branches: Vec<u8> =
            entries.iter().flat_map(|[from, to]| record::words(&[*from, *to, 0])).collect();
        let ip = Some(ip);
        chain_from_sample(
            &attr,
            mode,
            &Sample { callchain: &callchain, branches: &branches, ip, ..Sample::default() },
        )
    }

    #[test]
    fn calls_that_the_processor_recorded_are_the_stack() {
        const CALLS_OF_USER: u64 = 1 << 11 | 1;
        let calls = [[0x2005, 0x3000], [0x1005, 0x2000]];
        let chain = with_branches(misc::USER, 0x3010, CALLS_OF_USER, &calls);
        assert_eq!((chain.user, chain.full), (vec![0x3010, 0x2006, 0x1006], false));
        let chain = with_branches(misc::KERNEL, 0xffff_ffff_8100_0010, CALLS_OF_USER, &calls);
        assert_eq!(chain.kernel, [0xffff_ffff_8100_0010]);
        assert_eq!(chain.user, [0x3000, 0x2006, 0x1006], "the function that was called last");
        assert!(with_branches(misc::USER, 0x3010, CALLS_OF_USER, &[[0x2005, 0x3000]; 32]).full);
    }

    #[test]
    fn other_branches_and_none_leave_the_callchain() {
        const ANY_OF_USER: u64 = 1 << 3 | 1;
        let chain = with_branches(misc::USER, 0x3010, ANY_OF_USER, &[[0x2005, 0x3000]]);
        assert_eq!(chain.user, [0x7f99, 0x1]);
        assert_eq!(with_branches(misc::USER, 0x3010, 1 << 11, &[]).user, [0x7f99, 0x1]);
    }

    #[test]
    fn chain_of_maximal_length_counts_as_cut() {
        assert!(divided(misc::USER, 3, &[USER, 1, 2, 3]).full);
        assert!(!divided(misc::USER, 3, &[USER, 1, 2]).full);
        assert!(divided(misc::USER, 0, &[7; 127]).full);
    }
}
