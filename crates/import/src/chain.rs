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

/// Addresses, leaf first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    pub kernel: Vec<u64>,
    pub user: Vec<u64>,
    /// The chain has the maximal length that was asked for, so it may be cut.
    pub full: bool,
}

/// Without a callchain the sample's address alone is the stack.
pub(crate) fn chain_from_sample(attr: &Attr, mode: u16, taken: &Sample<'_>) -> Chain {
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

    #[test]
    fn chain_of_maximal_length_counts_as_cut() {
        assert!(divided(misc::USER, 3, &[USER, 1, 2, 3]).full);
        assert!(!divided(misc::USER, 3, &[USER, 1, 2]).full);
        assert!(divided(misc::USER, 0, &[7; 127]).full);
    }
}
