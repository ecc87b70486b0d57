// SPDX-License-Identifier: Apache-2.0
//! Hostile names, damaged numbers, closed pipes: the layout of views holds.

mod fixture;

use std::io::{self, ErrorKind, Write};

use fixture::{Fixture, deadlock_fixture, lock_fixture, noted_fixture, system_fixture};
use proptest::prelude::*;
use unicode_width::UnicodeWidthStr;
use wallprof_model::event::LedgerDelta;
use wallprof_model::histogram::{BUCKETS, Cell};
use wallprof_model::profile::{Finding, StallRecord};
use wallprof_model::{EpochSecond, Histogram, Metric, MonoNs, Reason, ThreadKey, ThreadRef};
use wallprof_views::{Report, StallsText, Style, report_json, report_text, stall_json};

fn write_all(fixture: &Fixture, style: &Style, out: &mut impl Write) -> io::Result<()> {
    let digest = fixture.digest();
    let findings = fixture.findings();
    let report = report(fixture, &digest, &findings);
    report_text(out, &report, style)?;
    let mut text = StallsText::new(&fixture.info, style);
    fixture.stalls.iter().try_for_each(|stall| text.write(out, stall, &fixture.surroundings_of(stall)))?;
    text.finish(out, false)
}

fn write_all_json(fixture: &Fixture, out: &mut impl Write) -> io::Result<()> {
    let digest = fixture.digest();
    report_json(out, &report(fixture, &digest, &fixture.findings()))?;
    let beside = |stall: &StallRecord| fixture.surroundings_of(stall);
    fixture.stalls.iter().try_for_each(|stall| stall_json(out, stall, &beside(stall), &fixture.info.clock))
}

fn report<'a>(
    fixture: &'a Fixture,
    stalls: &'a wallprof_analysis::StallDigest,
    findings: &'a [Finding],
) -> Report<'a> {
    Report {
        info: &fixture.info,
        threads: &fixture.threads,
        interrupts: &fixture.interrupts,
        intrusions: &fixture.intrusions,
        folded: &fixture.folded,
        marks: &fixture.marks,
        stalls,
        findings,
    }
}

fn text(fixture: &Fixture, style: &Style) -> String {
    let mut out = Vec::new();
    write_all(fixture, style, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The lock fixture with `name` wherever a name can stand.
fn fixture_named(name: &str) -> Fixture {
    let mut fixture = noted_fixture();
    fixture.marks.iter_mut().for_each(|mark| mark.text = name.into());
    fixture.moves.iter_mut().flatten().for_each(|moved| moved.name = name.into());
    for field in [&mut fixture.info.command, &mut fixture.info.hostname, &mut fixture.info.kernel] {
        *field = name.into();
    }
    fixture.info.losses.insert(name.into(), 7);
    for thread in &mut fixture.threads {
        (thread.info.comm, thread.info.process) = (name.into(), name.into());
    }
    fixture.interrupts.iter_mut().for_each(|interrupt| interrupt.name = name.into());
    let untracked = ThreadRef { comm: name.into(), tid: u32::MAX, ..ThreadRef::default() };
    for stall in &mut fixture.stalls {
        stall.comm = name.into();
        stall.syscall = Some(name.into());
        stall.ran_instead = vec![(untracked.clone(), 5), (untracked.clone(), u64::MAX)];
        for stack in [&mut stall.user, &mut stall.kernel].into_iter().flatten() {
            for frame in std::sync::Arc::make_mut(&mut stack.frames) {
                let frame = std::sync::Arc::make_mut(frame);
                frame.module = Some(name.into());
                for line in &mut frame.lines {
                    (line.symbol, line.file) = (Some(name.into()), Some(name.into()));
                }
            }
        }
        if let Some(fault) = &mut stall.fault {
            fault.file = Some(name.into());
        }
        if let Some(owner) = stall.lock.as_mut().and_then(|lock| lock.owner.as_mut()) {
            owner.comm = name.into();
        }
        if let Some(waker) = stall.waker.as_mut().and_then(|waker| waker.thread.as_mut()) {
            waker.comm = name.into();
        }
    }
    fixture
}

#[test]
fn names_cannot_steer_the_terminal() {
    let style = Style::plain();
    for name in ["\x1b]0;owned\x07", "a\nstall 99", "\u{202e}gnp.exe", "\u{9b}31m", "\r\t\0"] {
        let text = text(&fixture_named(name), &style);
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{name:?}");
        assert!(!text.contains('\u{202e}'), "{name:?}");
        assert!(!text.lines().any(|line| line.starts_with("stall 99")), "{name:?}");
    }
}

#[test]
fn json_holds_any_name_on_one_line() {
    let fixture = fixture_named("a\n\x1b\"\\\u{2028}");
    let mut out = Vec::new();
    write_all_json(&fixture, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().count(), 1 + fixture.stalls.len());
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}

#[test]
fn lines_fit_the_screen() {
    let wide = "std::map<市場データ, std::vector<Order>>::emplace_with_a_very_long_name_indeed_and_more";
    for width in [1, 76, 80, 100, 140, 300] {
        for unicode in [true, false] {
            let style = Style { width, unicode, ..Style::plain() };
            for fixture in
                [lock_fixture(), system_fixture(), deadlock_fixture(), fixture_named(wide), fixture_named("")]
            {
                let text = text(&fixture, &style);
                let longest = text.lines().max_by_key(|line| line.width()).unwrap();
                assert!(longest.width() <= width.max(76), "{width}: {longest}");
                assert!(unicode || text.is_ascii());
                assert_eq!(text.lines().find(|line| line.ends_with(' ')), None, "{width}");
            }
        }
    }
}

#[test]
fn damaged_numbers_do_not_panic() {
    let mut fixture = lock_fixture();
    let mut histogram = Histogram::default();
    for bucket in [0, 7, BUCKETS - 1] {
        histogram.add_cell(bucket, Cell { count: u64::MAX, total_ns: u64::MAX, max_ns: u64::MAX });
    }
    for thread in &mut fixture.threads {
        let mut ledger = LedgerDelta::new(ThreadKey(0), EpochSecond(0));
        ledger.blocked_ns = [u64::MAX; Reason::COUNT];
        (ledger.wall_ns, ledger.on_cpu_ns, ledger.irq_ns) = (1, u64::MAX, u64::MAX);
        (ledger.user_samples, ledger.kernel_samples) = (u64::MAX, u64::MAX);
        thread.ledger = ledger;
        thread.latency.insert(Metric::Fault, histogram.clone());
        (thread.start, thread.end) = (MonoNs(u64::MAX), MonoNs(0));
    }
    for stall in &mut fixture.stalls {
        (stall.start, stall.end) = (MonoNs(0), MonoNs(u64::MAX));
        (stall.blocked_ns, stall.runnable_ns) = (u64::MAX, u64::MAX);
        stall.asked_ns = Some(u64::MAX);
    }
    for interrupt in &mut fixture.interrupts {
        (interrupt.count, interrupt.total_ns) = (u64::MAX, u64::MAX);
    }
    (fixture.info.start, fixture.info.end) = (MonoNs(u64::MAX), MonoNs(0));
    let mut out = Vec::new();
    write_all(&fixture, &Style::plain(), &mut out).unwrap();
    write_all_json(&fixture, &mut out).unwrap();
}

#[test]
fn empty_recording_is_reported_as_empty() {
    let mut fixture = lock_fixture();
    (fixture.threads, fixture.interrupts, fixture.folded, fixture.stalls) = (vec![], vec![], vec![], vec![]);
    let text = text(&fixture, &Style::plain());
    assert!(text.contains("No thread was kept waiting for 100 µs or longer."));
    assert!(text.contains("No thread was recorded."));
    assert!(text.contains("No stall matches. Voluntary waits are left out unless --all is given."));
    let mut out = Vec::new();
    StallsText::new(&fixture.info, &Style::plain()).finish(&mut out, true).unwrap();
    assert_eq!(out, b"No stall matches.\n");
}

/// Takes a few bytes, then has no reader.
struct ClosingPipe(usize);

impl Write for ClosingPipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn closed_pipe_is_a_broken_pipe() {
    let fixture = lock_fixture();
    for capacity in [0, 1, 500, 3_000] {
        let text = write_all(&fixture, &Style::plain(), &mut ClosingPipe(capacity));
        assert_eq!(text.unwrap_err().kind(), ErrorKind::BrokenPipe);
        let json = write_all_json(&fixture, &mut ClosingPipe(capacity));
        assert_eq!(json.unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn the_same_values_give_the_same_bytes() {
    let fixture = system_fixture();
    assert_eq!(text(&fixture, &Style::plain()), text(&fixture, &Style::plain()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_name_at_any_width(name in any::<String>(), width in 0usize..200, colour in any::<bool>()) {
        let style = Style { width, colour, ..Style::plain() };
        let text = text(&fixture_named(&name), &style);
        prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n' && c != '\x1b'));
        prop_assert!(colour || !text.contains('\x1b'));
    }
}
