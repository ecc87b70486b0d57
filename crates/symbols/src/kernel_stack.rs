// SPDX-License-Identifier: Apache-2.0
//! Classifies kernel stacks by the names of their functions: where the profiler's own frames end, and whether
//! an interrupt is on the stack.

use std::collections::HashMap;
use std::sync::Arc;

use crate::kallsyms::KernelSymbols;

/// A busy machine has some ten thousand distinct kernel return addresses.
const MAX_KNOWN: usize = 1 << 16;

/// Functions on the way from a tracepoint or perf event to a BPF program, and the program itself.
const OWN: &[&str] = &[
    "bpf_",
    "__bpf_",
    "__traceiter_",
    "perf_trace_",
    "trace_call_bpf",
    "trace_event_raw_event_",
    "perf_tp_event",
    "perf_syscall_",
    "perf_swevent_",
    "__perf_event_overflow",
    "get_perf_callchain",
    "perf_callchain",
];

/// Where an interrupt enters (x86-64 and aarch64), and where its deferred work runs on its way out. A
/// softirq that a task runs itself, in `local_bh_enable`, has none of these.
const INTERRUPT: &[&str] = &[
    "asm_sysvec_",
    "sysvec_",
    "__sysvec_",
    "asm_common_interrupt",
    "common_interrupt",
    "irq_exit_rcu",
    "__irq_exit_rcu",
    "asm_exc_nmi",
    "el1h_64_irq",
    "el0t_64_irq",
    "el1_interrupt",
    "el0_interrupt",
];

/// Functions that run for a thread on its way back to user mode, after an interrupt or a system call:
/// signals, task work, the end of a killed thread. The interrupt whose entry is further out is over by then.
const RETURN_TO_USER: &[&str] = &[
    "irqentry_exit_to_user_mode",
    "exit_to_user_mode_",
    "syscall_exit_to_user_mode",
    "arch_do_signal_or_restart",
    "do_notify_resume",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Own,
    Interrupt,
    ReturnToUser,
    Other,
    /// No known function: a BPF program that was loaded after the symbols were read.
    Unknown,
}

/// Finds the roles of kernel frames; each distinct address is looked up once.
pub struct KernelStacks {
    symbols: Arc<KernelSymbols>,
    roles: HashMap<u64, Role>,
}

impl KernelStacks {
    /// No address has been looked up yet.
    pub fn new(symbols: Arc<KernelSymbols>) -> Self {
        KernelStacks { symbols, roles: HashMap::new() }
    }

    /// The symbols that roles are derived from.
    pub fn symbols(&self) -> &Arc<KernelSymbols> {
        &self.symbols
    }

    /// How many addresses at the leaf end belong to the profiler: BPF programs and what called them.
    ///
    /// For stacks taken inside a tracepoint. A clock sample's stack begins at the interrupted function,
    /// which may be a BPF program of another tool.
    pub fn trim_own_frames(&mut self, addresses: &[u64]) -> usize {
        let mut own = 0;
        for (depth, &address) in addresses.iter().enumerate() {
            match self.role(address) {
                Role::Own => own = depth + 1,
                Role::Unknown => {}
                Role::Interrupt | Role::ReturnToUser | Role::Other => break,
            }
        }
        own
    }

    /// Whether the stack was taken inside an interrupt, or in what runs on the way out of one.
    pub fn is_interrupt_stack(&mut self, addresses: &[u64]) -> bool {
        let roles = addresses.iter().map(|&address| self.role(address));
        let mut deciding = roles.filter(|role| matches!(role, Role::Interrupt | Role::ReturnToUser));
        deciding.next() == Some(Role::Interrupt)
    }

    fn role(&mut self, address: u64) -> Role {
        if self.roles.len() >= MAX_KNOWN {
            self.roles.clear();
        }
        let symbols = &self.symbols;
        *self.roles.entry(address).or_insert_with(|| {
            symbols.symbol(address).map_or(Role::Unknown, |symbol| role_from_name(symbol.name))
        })
    }
}

fn role_from_name(name: &str) -> Role {
    let begins_with = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if begins_with(OWN) {
        Role::Own
    } else if begins_with(INTERRUPT) {
        Role::Interrupt
    } else if begins_with(RETURN_TO_USER) {
        Role::ReturnToUser
    } else {
        Role::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTIONS: [&str; 12] = [
        "__schedule",
        "try_to_wake_up",
        "bpf_trace_run4",
        "__traceiter_sched_switch",
        "asm_sysvec_apic_timer_interrupt",
        "__irq_exit_rcu",
        "do_softirq",
        "__local_bh_enable_ip",
        "bpf_map_update_elem",
        "do_exit",
        "irqentry_exit_to_user_mode",
        "_etext",
    ];
    /// A BPF program that is in no table.
    const UNKNOWN: u64 = 0xffff_ffff_c020_1000;

    fn at(name: &str) -> u64 {
        let index = FUNCTIONS.iter().position(|known| *known == name).expect("a known function");
        0xffff_ffff_8100_0010 + 0x100 * index as u64
    }

    fn stacks() -> KernelStacks {
        let line = |name: &&str| format!("{:x} T {name}\n", at(name) - 0x10);
        let text: String = FUNCTIONS.iter().map(line).collect();
        KernelStacks::new(Arc::new(KernelSymbols::from_reader(text.as_bytes()).expect("symbols")))
    }

    #[test]
    fn the_profilers_frames_are_cut_at_the_leaf_only() {
        let (switch, map) = (at("__schedule"), at("bpf_map_update_elem"));
        let own = [at("bpf_trace_run4"), at("__traceiter_sched_switch")];
        assert_eq!(stacks().trim_own_frames(&[own[0], own[1], switch, map]), 2);
        assert_eq!(stacks().trim_own_frames(&[UNKNOWN, own[0], own[1], switch]), 3);
        assert_eq!(stacks().trim_own_frames(&[switch, own[0]]), 0);
        assert_eq!(stacks().trim_own_frames(&[UNKNOWN, at("try_to_wake_up")]), 0);
        assert_eq!(stacks().trim_own_frames(&[at("asm_sysvec_apic_timer_interrupt"), own[0]]), 0);
        assert_eq!(stacks().trim_own_frames(&[]), 0);
    }

    #[test]
    fn softirq_that_a_task_runs_is_not_an_interrupt() {
        let wake = at("try_to_wake_up");
        assert!(stacks().is_interrupt_stack(&[wake, at("__irq_exit_rcu")]));
        assert!(stacks().is_interrupt_stack(&[
            wake,
            at("do_softirq"),
            at("asm_sysvec_apic_timer_interrupt")
        ]));
        assert!(!stacks().is_interrupt_stack(&[wake, at("do_softirq"), at("__local_bh_enable_ip")]));
        assert!(!stacks().is_interrupt_stack(&[UNKNOWN]));
    }

    #[test]
    fn task_work_on_the_way_to_user_mode_is_the_threads_own() {
        let killed = [
            at("try_to_wake_up"),
            at("do_exit"),
            at("irqentry_exit_to_user_mode"),
            at("asm_sysvec_apic_timer_interrupt"),
        ];
        assert!(!stacks().is_interrupt_stack(&killed));
        let hit_meanwhile = [&[at("try_to_wake_up"), at("__irq_exit_rcu")], &killed[1..]].concat();
        assert!(stacks().is_interrupt_stack(&hit_meanwhile));
    }

    #[test]
    fn cached_roles_are_bounded() {
        let mut stacks = stacks();
        for address in 0..2 * MAX_KNOWN as u64 {
            assert_eq!(stacks.trim_own_frames(&[address]), 0);
        }
        assert!(stacks.roles.len() <= MAX_KNOWN);
    }
}
