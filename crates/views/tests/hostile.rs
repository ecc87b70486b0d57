//! Names chosen by an enemy, damaged numbers, closed pipes: views stay in shape.

mod story;

use std::io::{self, ErrorKind, Write};

use proptest::prelude::*;
use story::{Story, deadlock_story, lock_story, noted_story, system_story};
use unicode_width::UnicodeWidthStr;
use wallprof_model::event::LedgerDelta;
use wallprof_model::histogram::{BUCKETS, Cell};
use wallprof_model::profile::Finding;
use wallprof_model::{EpochSecond, Histogram, Metric, MonoNs, Reason, ThreadKey, ThreadRef};
use wallprof_views::{Report, StallsText, Style, report_json, report_text, stall_json};

fn write_all(story: &Story, style: &Style, out: &mut impl Write) -> io::Result<()> {
    let digest = story.digest();
    let findings = story.findings();
    let report = report(story, &digest, &findings);
    report_text(out, &report, style)?;
    let mut text = StallsText::new(&story.info, style);
    let beside = story.surroundings();
    story.stalls.iter().try_for_each(|stall| text.write(out, stall, &beside))?;
    text.finish(out)
}

fn write_all_json(story: &Story, out: &mut impl Write) -> io::Result<()> {
    let digest = story.digest();
    report_json(out, &report(story, &digest, &story.findings()))?;
    let beside = story.surroundings();
    story.stalls.iter().try_for_each(|stall| stall_json(out, stall, &beside, &story.info.clock))
}

fn report<'a>(
    story: &'a Story,
    stalls: &'a wallprof_analysis::StallDigest,
    findings: &'a [Finding],
) -> Report<'a> {
    Report {
        info: &story.info,
        threads: &story.threads,
        interrupts: &story.interrupts,
        intrusions: &story.intrusions,
        folded: &story.folded,
        marks: &story.marks,
        stalls,
        findings,
    }
}

fn text(story: &Story, style: &Style) -> String {
    let mut out = Vec::new();
    write_all(story, style, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The lock story with `name` wherever a name can stand.
fn story_named(name: &str) -> Story {
    let mut story = noted_story();
    story.marks.iter_mut().for_each(|mark| mark.text = name.into());
    story.moves.iter_mut().flatten().for_each(|moved| moved.name = name.into());
    for field in [&mut story.info.command, &mut story.info.hostname, &mut story.info.kernel] {
        *field = name.into();
    }
    story.info.losses.insert(name.into(), 7);
    for thread in &mut story.threads {
        (thread.info.comm, thread.info.process) = (name.into(), name.into());
    }
    story.interrupts.iter_mut().for_each(|interrupt| interrupt.name = name.into());
    let stranger = ThreadRef { comm: name.into(), tid: u32::MAX, ..ThreadRef::default() };
    for stall in &mut story.stalls {
        stall.comm = name.into();
        stall.syscall = Some(name.into());
        stall.ran_instead = vec![(stranger.clone(), 5), (stranger.clone(), u64::MAX)];
        for stack in [&mut stall.user, &mut stall.kernel].into_iter().flatten() {
            for frame in &mut stack.frames {
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
    story
}

#[test]
fn names_cannot_steer_the_terminal() {
    let style = Style::plain();
    for name in ["\x1b]0;owned\x07", "a\nstall 99", "\u{202e}gnp.exe", "\u{9b}31m", "\r\t\0"] {
        let text = text(&story_named(name), &style);
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{name:?}");
        assert!(!text.contains('\u{202e}'), "{name:?}");
        assert!(!text.lines().any(|line| line.starts_with("stall 99")), "{name:?}");
    }
}

#[test]
fn json_holds_any_name_on_one_line() {
    let story = story_named("a\n\x1b\"\\\u{2028}");
    let mut out = Vec::new();
    write_all_json(&story, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().count(), 1 + story.stalls.len());
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
            for story in [lock_story(), system_story(), deadlock_story(), story_named(wide), story_named("")]
            {
                let text = text(&story, &style);
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
    let mut story = lock_story();
    let mut histogram = Histogram::default();
    for bucket in [0, 7, BUCKETS - 1] {
        histogram.add_cell(bucket, Cell { count: u64::MAX, total_ns: u64::MAX, max_ns: u64::MAX });
    }
    for thread in &mut story.threads {
        let mut ledger = LedgerDelta::new(ThreadKey(0), EpochSecond(0));
        ledger.blocked_ns = [u64::MAX; Reason::COUNT];
        (ledger.wall_ns, ledger.on_cpu_ns, ledger.irq_ns) = (1, u64::MAX, u64::MAX);
        (ledger.user_samples, ledger.kernel_samples) = (u64::MAX, u64::MAX);
        thread.ledger = ledger;
        thread.latency.insert(Metric::Fault, histogram.clone());
        (thread.start, thread.end) = (MonoNs(u64::MAX), MonoNs(0));
    }
    for stall in &mut story.stalls {
        (stall.start, stall.end) = (MonoNs(0), MonoNs(u64::MAX));
        (stall.blocked_ns, stall.runnable_ns) = (u64::MAX, u64::MAX);
        stall.asked_ns = Some(u64::MAX);
    }
    for interrupt in &mut story.interrupts {
        (interrupt.count, interrupt.total_ns) = (u64::MAX, u64::MAX);
    }
    (story.info.start, story.info.end) = (MonoNs(u64::MAX), MonoNs(0));
    let mut out = Vec::new();
    write_all(&story, &Style::plain(), &mut out).unwrap();
    write_all_json(&story, &mut out).unwrap();
}

#[test]
fn an_empty_recording_is_said_to_be_empty() {
    let mut story = lock_story();
    (story.threads, story.interrupts, story.folded, story.stalls) = (vec![], vec![], vec![], vec![]);
    let text = text(&story, &Style::plain());
    assert!(text.contains("No thread was kept waiting for 100 µs or longer."));
    assert!(text.contains("No thread was recorded."));
    assert!(text.contains("No stall matches."));
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
fn a_closed_pipe_comes_back_as_what_it_is() {
    let story = lock_story();
    for room in [0, 1, 500, 3_000] {
        let text = write_all(&story, &Style::plain(), &mut ClosingPipe(room));
        assert_eq!(text.unwrap_err().kind(), ErrorKind::BrokenPipe);
        let json = write_all_json(&story, &mut ClosingPipe(room));
        assert_eq!(json.unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn the_same_values_give_the_same_bytes() {
    let story = system_story();
    assert_eq!(text(&story, &Style::plain()), text(&story, &Style::plain()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_name_at_any_width(name in any::<String>(), width in 0usize..200, colour in any::<bool>()) {
        let style = Style { width, colour, ..Style::plain() };
        let text = text(&story_named(&name), &style);
        prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n' && c != '\x1b'));
        prop_assert!(colour || !text.contains('\x1b'));
    }
}
