// SPDX-License-Identifier: Apache-2.0
//! What a thread does in a state of a span, in words.

use wallprof_model::{Reason, SpanState, State};

/// `waiting for a lock`, `running`.
pub fn words_of_state(state: SpanState) -> String {
    match state {
        SpanState::Cpu | SpanState::Of(State::User | State::Kernel | State::Cpu) => "running".into(),
        SpanState::Unknown => "running, or in waits below --min-stall".into(),
        SpanState::Of(State::Irq) => "interrupts".into(),
        SpanState::Of(State::FaultMinor) => "page faults".into(),
        SpanState::Of(State::FaultMajor) => "page faults that read a disk".into(),
        SpanState::Of(State::Runnable) => "waiting for a CPU".into(),
        SpanState::Of(State::Preempted) => "waiting for a CPU that was taken away".into(),
        SpanState::Of(State::Blocked(Reason::Lock)) => "waiting for a lock".into(),
        SpanState::Of(State::Blocked(Reason::Disk)) => "waiting for a disk".into(),
        SpanState::Of(State::Blocked(Reason::Sleep)) => "sleeping".into(),
        SpanState::Of(State::Blocked(Reason::Other)) => "blocked".into(),
        SpanState::Of(State::Blocked(reason)) => format!("waiting ({})", reason.name()),
    }
}
