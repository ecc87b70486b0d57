// SPDX-License-Identifier: Apache-2.0
//! The start of an interrupt's stack. The frames below it belong to the thread that was current, a bystander.

use wallprof_model::FrameKind;

use super::frame::{Frame, FrameId, Frames};

/// The first function of an interrupt on x86-64 and aarch64, by the start of the name; the most specific
/// first.
const ENTRIES: [&[&str]; 2] = [
    &["asm_sysvec_", "asm_common_interrupt", "asm_exc_nmi", "el1h_64_irq", "el0t_64_irq"],
    &[
        "sysvec_",
        "__sysvec_",
        "common_interrupt",
        "irq_exit_rcu",
        "__irq_exit_rcu",
        "el1_interrupt",
        "el0_interrupt",
    ],
];

/// The part of a kernel stack (root first) that is the innermost interrupt's; all of it where none is
/// recognised.
pub(super) fn from_entry<'a>(path: &'a [FrameId], frames: &Frames) -> &'a [FrameId] {
    let begins = |id: &FrameId, entries: &[&str]| match frames.get(*id) {
        Frame::Code(code) if code.kind == FrameKind::Kernel => code.lines.iter().any(|line| {
            line.symbol.as_deref().is_some_and(|symbol| entries.iter().any(|entry| symbol.starts_with(entry)))
        }),
        _ => false,
    };
    let innermost = path.iter().rposition(|id| begins(id, ENTRIES[0]));
    let first = innermost.or_else(|| path.iter().position(|id| begins(id, ENTRIES[1])));
    &path[first.unwrap_or(0)..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::fixture::{code, kernel_code};

    fn cut(symbols: &[&str]) -> Vec<String> {
        let mut frames = Frames::default();
        let path: Vec<FrameId> = symbols.iter().map(|symbol| frames.code(&kernel_code(symbol))).collect();
        let kept = from_entry(&path, &frames).iter();
        kept.map(|id| frames.get(*id).functions()[0].name.to_string()).collect()
    }

    #[test]
    fn the_bystander_s_frames_go() {
        assert_eq!(
            cut(&[
                "do_syscall_64",
                "vfs_read",
                "asm_sysvec_apic_timer_interrupt",
                "sysvec_apic",
                "hrtimer_wakeup"
            ]),
            ["asm_sysvec_apic_timer_interrupt", "sysvec_apic", "hrtimer_wakeup"]
        );
        assert_eq!(
            cut(&["asm_common_interrupt", "handle_irq", "asm_exc_nmi", "wake"]),
            ["asm_exc_nmi", "wake"],
            "of nested interrupts the one that woke"
        );
        assert_eq!(
            cut(&["vfs_read", "__irq_exit_rcu", "net_rx_action"]),
            ["__irq_exit_rcu", "net_rx_action"]
        );
        assert_eq!(cut(&["kthread", "wake"]), ["kthread", "wake"]);
    }

    #[test]
    fn a_function_of_the_program_is_no_interrupt() {
        let mut frames = Frames::default();
        let path = [frames.code(&kernel_code("kthread")), frames.code(&code(&["sysvec_of_mine"]))];
        assert_eq!(from_entry(&path, &frames), path);
    }
}
