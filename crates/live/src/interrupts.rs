// SPDX-License-Identifier: Apache-2.0
//! Names of interrupts: softirqs and vectors by the kernel's numbering, device interrupts by
//! `/proc/interrupts`.

use std::collections::HashMap;

use wallprof_model::event::InterruptKind;
use wallprof_probe::bpf::constants as c;

/// include/linux/interrupt.h, `softirq_to_name`.
const SOFTIRQS: [&str; 10] =
    ["hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu"];

/// Names, read when they are first needed.
#[derive(Default)]
pub struct InterruptNames {
    devices: HashMap<u32, String>,
    read: bool,
}

impl InterruptNames {
    /// The name of interrupt `number`. `kind` is the kernel side's code.
    pub fn name(&mut self, kind: u16, number: u32) -> (InterruptKind, String) {
        match u64::from(kind) {
            c::INTERRUPT_SOFTIRQ => (InterruptKind::Softirq, named(&SOFTIRQS, number, "softirq")),
            c::INTERRUPT_VECTOR => (InterruptKind::Vector, named(&c::VECTOR_NAMES, number, "vector")),
            _ => (InterruptKind::Irq, self.device(number)),
        }
    }

    fn device(&mut self, number: u32) -> String {
        if !self.read {
            self.read = true;
            self.devices =
                devices_from_text(&std::fs::read_to_string("/proc/interrupts").unwrap_or_default());
        }
        self.devices.get(&number).cloned().unwrap_or_else(|| format!("irq {number}"))
    }
}

fn named(names: &[&str], number: u32, kind: &str) -> String {
    names.get(number as usize).map_or_else(|| format!("{kind} {number}"), |name| (*name).to_string())
}

/// The last word of each line that starts with a number: the device's action.
fn devices_from_text(text: &str) -> HashMap<u32, String> {
    let device = |line: &str| {
        let (number, rest) = line.trim_start().split_once(':')?;
        Some((number.parse().ok()?, rest.split_whitespace().last()?.to_string()))
    };
    text.lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_kinds() {
        let mut names = InterruptNames::default();
        assert_eq!(names.name(c::INTERRUPT_SOFTIRQ as u16, 3), (InterruptKind::Softirq, "net_rx".into()));
        assert_eq!(names.name(c::INTERRUPT_VECTOR as u16, 1), (InterruptKind::Vector, "reschedule".into()));
        assert_eq!(names.name(c::INTERRUPT_SOFTIRQ as u16, 77).1, "softirq 77");
        let text = "           CPU0\n  4:  12  IO-APIC  4-edge  ttyS0\nNMI: 0 Non-maskable interrupts\n";
        assert_eq!(devices_from_text(text).get(&4).map(String::as_str), Some("ttyS0"));
        assert_eq!(devices_from_text(text).len(), 1);
    }
}
