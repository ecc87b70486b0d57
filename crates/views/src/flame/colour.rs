// SPDX-License-Identifier: Apache-2.0
//! Colours: hot where the thread ran, yellow and green where it waited for a CPU, cold where it was blocked.

use std::fmt;

use wallprof_analysis::weights::{Node, Role};
use wallprof_model::{Reason, State};

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colour(pub u8, pub u8, pub u8);

impl fmt::Display for Colour {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rgb({},{},{})", self.0, self.1, self.2)
    }
}

/// The colour of the box that all others stand on.
pub(super) const ALL: Colour = Colour(222, 222, 218);

/// The colours of one state: neighbours differ a little, so that their edges are seen.
struct Family {
    from: Colour,
    to: Colour,
}

impl Family {
    fn shade(&self, name: &str) -> Colour {
        // FNV-1a: the same name has the same shade in every picture.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let part = (hash >> 32) as u32 & 0xff;
        let mix = |from: u8, to: u8| ((u32::from(from) * (255 - part) + u32::from(to) * part) / 255) as u8;
        let (from, to) = (self.from, self.to);
        Colour(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
    }

    fn middle(&self) -> Colour {
        let mix = |from: u8, to: u8| (u16::from(from) + u16::from(to)).div_euclid(2) as u8;
        let (from, to) = (self.from, self.to);
        Colour(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
    }
}

const fn family(from: Colour, to: Colour) -> Family {
    Family { from, to }
}

/// Processes, threads and marks for missing stacks.
const NEUTRAL: Family = family(Colour(214, 214, 210), Colour(232, 232, 228));
/// The stacks of threads that woke others.
const WAKING: Family = family(Colour(92, 186, 166), Colour(150, 214, 196));

fn family_of_state(state: State) -> Family {
    match state {
        State::User => family(Colour(240, 88, 56), Colour(255, 164, 70)),
        State::Kernel => family(Colour(196, 112, 44), Colour(224, 156, 84)),
        State::Cpu => family(Colour(226, 120, 60), Colour(240, 160, 92)),
        State::Irq => family(Colour(206, 30, 70), Colour(222, 70, 100)),
        State::FaultMinor => family(Colour(244, 150, 176), Colour(250, 182, 200)),
        State::FaultMajor => family(Colour(226, 60, 126), Colour(240, 104, 156)),
        State::Runnable => family(Colour(172, 204, 60), Colour(200, 222, 106)),
        State::Preempted => family(Colour(244, 212, 48), Colour(252, 230, 110)),
        State::Blocked(reason) => family_of_reason(reason),
    }
}

/// Purple for locks, blue for devices and peers, pale for voluntary waits.
fn family_of_reason(reason: Reason) -> Family {
    match reason {
        Reason::Lock => family(Colour(142, 98, 202), Colour(172, 136, 222)),
        Reason::Memory => family(Colour(186, 96, 190), Colour(208, 136, 210)),
        Reason::Disk => family(Colour(84, 104, 200), Colour(124, 142, 220)),
        Reason::Network => family(Colour(64, 148, 226), Colour(112, 180, 240)),
        Reason::Pipe => family(Colour(76, 182, 232), Colour(128, 206, 242)),
        Reason::Ipc => family(Colour(70, 190, 212), Colour(122, 210, 226)),
        Reason::Stopped => family(Colour(124, 140, 156), Colour(150, 164, 178)),
        Reason::Other => family(Colour(130, 160, 190), Colour(158, 184, 208)),
        Reason::Wait => family(Colour(176, 194, 216), Colour(196, 210, 228)),
        Reason::Poll => family(Colour(166, 200, 222), Colour(190, 216, 234)),
        Reason::Sleep => family(Colour(188, 206, 230), Colour(208, 222, 240)),
        Reason::Child => family(Colour(194, 186, 212), Colour(212, 204, 228)),
    }
}

/// A box by the state in which most of its time was spent; kernel functions are darker.
pub(super) fn colour_of_node(node: &Node) -> Colour {
    let plain = match node.role {
        Role::Process | Role::Thread | Role::Mark => NEUTRAL.shade(&node.name),
        Role::State(state) => colour_of_state(state),
        Role::User | Role::Kernel if node.waking => WAKING.shade(&node.name),
        // An event's counts have no states.
        Role::User => family_of_state(node.state.unwrap_or(State::User)).shade(&node.name),
        Role::Kernel => family_of_state(node.state.unwrap_or(State::Kernel)).shade(&node.name),
    };
    if node.role == Role::Kernel { darker(plain) } else { plain }
}

pub(super) fn colour_of_state(state: State) -> Colour {
    family_of_state(state).middle()
}

fn darker(Colour(red, green, blue): Colour) -> Colour {
    let darker = |part: u8| (u16::from(part) * 22 / 25) as u8;
    Colour(darker(red), darker(green), darker(blue))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(role: Role, state: Option<State>) -> Node {
        Node { name: "run".into(), role, waking: false, parent: None, weight: 1, own: 1, state }
    }

    fn is_hot(Colour(red, _, blue): Colour) -> bool {
        red > blue
    }

    #[test]
    fn running_is_hot_and_blocked_is_cold() {
        for state in
            [State::User, State::Kernel, State::Irq, State::FaultMajor, State::Preempted, State::Runnable]
        {
            assert!(is_hot(colour_of_state(state)), "{state:?}");
            assert!(is_hot(colour_of_node(&node(Role::User, Some(state)))), "{state:?}");
        }
        for reason in Reason::ALL {
            assert!(!is_hot(colour_of_state(State::Blocked(reason))), "{reason:?}");
        }
    }

    #[test]
    fn no_two_states_look_alike() {
        let states: Vec<State> = (0..=u8::MAX).filter_map(State::from_code).collect();
        for (at, one) in states.iter().enumerate() {
            for other in &states[..at] {
                let (a, b) = (colour_of_state(*one), colour_of_state(*other));
                let distance = a.0.abs_diff(b.0).max(a.1.abs_diff(b.1)).max(a.2.abs_diff(b.2));
                assert!(distance >= 8, "{one:?} {a} and {other:?} {b}");
            }
        }
    }

    #[test]
    fn kernel_functions_are_darker_than_the_program_s() {
        let (user, kernel) = (node(Role::User, Some(State::Kernel)), node(Role::Kernel, Some(State::Kernel)));
        assert!(colour_of_node(&kernel).0 < colour_of_node(&user).0);
    }
}
