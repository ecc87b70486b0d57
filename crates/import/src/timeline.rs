//! One thread over time, from what a perf.data file says of it: when it ran, when it waited, and what nobody
//! knows.
//!
//! Pure. Two kinds of files: where switches are recorded both ways, running time is what lies between
//! switch-in and switch-out; where they are not, it is what the samples stand for. A thread counts as the
//! first kind from its first switch-in on.

use wallprof_model::{Reason, StackId};

/// What a stretch of a thread's time was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spent {
    OnCpu,
    Runnable,
    Preempted,
    Blocked(Reason),
    /// Between two events that do not say what was in between.
    Unknown,
}

/// Who ended a wait, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wake<W> {
    pub at: u64,
    pub waker: Option<W>,
}

/// Why a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    Preempted,
    Blocked(Reason),
}

/// The stacks with which a thread left its CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stacks {
    pub user: Option<StackId>,
    pub kernel: Option<StackId>,
}

/// An interval off the CPU, from its switch-out to its switch-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait<W> {
    pub from: u64,
    pub to: u64,
    /// Where the blocked part ends and the runnable one begins.
    pub woken_at: u64,
    pub why: Leave,
    pub stacks: Stacks,
    pub waker: Option<W>,
    /// The recording ended before the wait did.
    pub open: bool,
}

/// What a timeline says; stretches follow one another without gap or overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step<W> {
    Spent { from: u64, to: u64, what: Spent },
    Waited(Wait<W>),
}

#[derive(Clone, Debug)]
enum Doing<W> {
    /// Perhaps it runs, perhaps not.
    Unknown,
    /// `woken`: a wakeup that came while it ran; it ends the wait that is about to begin.
    Running {
        sure_until: u64,
        woken: Option<Wake<W>>,
    },
    Waiting {
        from: u64,
        why: Leave,
        stacks: Stacks,
        early: Option<Wake<W>>,
        wake: Option<Wake<W>>,
    },
    /// Woken from a sleep whose beginning nobody saw, or new.
    Runnable,
}

/// One thread.
#[derive(Clone, Debug)]
pub(crate) struct Timeline<W> {
    upto: u64,
    doing: Doing<W>,
    /// Its switch-ins are recorded, too.
    exact: bool,
    /// Sampled running time for which no room was found yet.
    credit: u64,
    /// A trace follows it, and nothing says when it has a CPU.
    is_followed: bool,
}

impl<W> Timeline<W> {
    /// A thread of which the first thing is known at `from`.
    pub(crate) fn new(from: u64) -> Self {
        Timeline { upto: from, doing: Doing::Unknown, exact: false, credit: 0, is_followed: false }
    }

    /// The time up to which everything is told.
    pub(crate) fn upto(&self) -> u64 {
        self.upto
    }

    /// It was sampled running; the sample stands for `weight` ns before it.
    pub(crate) fn sampled(&mut self, at: u64, weight: u64, steps: &mut Vec<Step<W>>) {
        self.credit = self.credit.saturating_add(weight);
        match &mut self.doing {
            Doing::Running { sure_until, .. } => *sure_until = at.max(*sure_until),
            Doing::Waiting { .. } | Doing::Runnable => {
                self.lose_track(at, steps);
                self.doing = Doing::Running { sure_until: at, woken: None };
            }
            Doing::Unknown => self.doubt(at, steps),
        }
    }

    /// Something else of it was recorded.
    pub(crate) fn seen(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        if matches!(self.doing, Doing::Unknown) {
            self.doubt(at, steps);
        }
    }

    /// A trace of it begins, of a recording without switches: it lives until the recording ends, but when it
    /// has a CPU is not known.
    pub(crate) fn followed(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        self.is_followed = true;
        self.seen(at, steps);
    }

    pub(crate) fn switch_out(&mut self, at: u64, why: Leave, stacks: Stacks, steps: &mut Vec<Step<W>>) {
        let early = match std::mem::replace(&mut self.doing, Doing::Unknown) {
            Doing::Running { woken, .. } => {
                self.run(at, steps);
                woken.filter(|_| why != Leave::Preempted)
            }
            doing => {
                self.doing = doing;
                self.lose_track(at, steps);
                None
            }
        };
        self.doing = Doing::Waiting { from: self.upto, why, stacks, early, wake: None };
    }

    /// The stacks of a switch-out that was told without.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.doing, Doing::Waiting { .. })
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.doing, Doing::Running { .. })
    }

    pub(crate) fn switch_in(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        match std::mem::replace(&mut self.doing, Doing::Unknown) {
            Doing::Waiting { from, why, stacks, early, wake } => {
                let wake = wake.or(early.map(|wake| Wake { at: from, ..wake }));
                self.end_wait(at, from, why, stacks, wake, false, steps);
            }
            Doing::Runnable => self.spend(at, Spent::Runnable, steps),
            Doing::Unknown => self.doubt(at, steps),
            Doing::Running { sure_until, .. } => {
                // A switch-out is missing since it was last seen running.
                self.run(sure_until.min(at), steps);
                self.spend(at, Spent::Unknown, steps);
            }
        }
        self.exact = true;
        self.doing = Doing::Running { sure_until: self.upto, woken: None };
    }

    pub(crate) fn wake(&mut self, at: u64, waker: Option<W>, steps: &mut Vec<Step<W>>) {
        match &mut self.doing {
            Doing::Waiting { why: Leave::Blocked(_), wake, .. } => {
                wake.get_or_insert(Wake { at, waker });
            }
            Doing::Running { woken, .. } => *woken = Some(Wake { at, waker }),
            Doing::Unknown => {
                self.doubt(at, steps);
                self.doing = Doing::Runnable;
            }
            Doing::Waiting { .. } | Doing::Runnable => {}
        }
    }

    /// The thread has ended.
    pub(crate) fn end(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        match self.doing {
            Doing::Running { .. } => self.run(at, steps),
            _ => self.lose_track(at, steps),
        }
        self.doing = Doing::Unknown;
        self.is_followed = false;
    }

    /// The recording has ended. What a thread does goes on to there if the end of it would have been seen.
    pub(crate) fn finish(&mut self, at: u64, switch_ins_are_seen: bool, steps: &mut Vec<Step<W>>) {
        match std::mem::replace(&mut self.doing, Doing::Unknown) {
            Doing::Running { .. } if self.exact => self.run(at, steps),
            Doing::Waiting { from, why, stacks, early, wake } if switch_ins_are_seen => {
                let wake = wake.or(early.map(|wake| Wake { at: from, ..wake }));
                self.end_wait(at, from, why, stacks, wake, true, steps);
            }
            Doing::Runnable if switch_ins_are_seen => self.spend(at, Spent::Runnable, steps),
            Doing::Running { sure_until, .. } => self.run(sure_until, steps),
            _ => {}
        }
        if self.is_followed {
            self.doubt(at, steps);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn end_wait(
        &mut self,
        at: u64,
        from: u64,
        why: Leave,
        stacks: Stacks,
        wake: Option<Wake<W>>,
        open: bool,
        steps: &mut Vec<Step<W>>,
    ) {
        let to = at.max(from);
        let (woken_at, waker) = match (why, wake) {
            (Leave::Preempted, _) => (from, None),
            (Leave::Blocked(_), Some(wake)) => (wake.at.clamp(from, to), wake.waker),
            (Leave::Blocked(_), None) => (to, None),
        };
        match why {
            Leave::Preempted => self.spend(to, Spent::Preempted, steps),
            Leave::Blocked(reason) => {
                self.spend(woken_at, Spent::Blocked(reason), steps);
                self.spend(to, Spent::Runnable, steps);
            }
        }
        steps.push(Step::Waited(Wait { from, to, woken_at, why, stacks, waker, open }));
    }

    /// It is known to have gone on since the last switch, but not when.
    fn lose_track(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        if let Doing::Waiting { why: Leave::Blocked(reason), wake: Some(wake), .. } = &self.doing {
            let (reason, woken_at) = (*reason, wake.at.min(at));
            self.spend(woken_at, Spent::Blocked(reason), steps);
        }
        self.doubt(at, steps);
    }

    /// Running up to `at`: all of it where switches are known, else what samples stand for.
    fn run(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        if self.exact {
            self.credit = 0;
            self.spend(at, Spent::OnCpu, steps);
        } else {
            self.doubt(at, steps);
        }
    }

    /// Up to `at`: what samples stand for is running time, and lies next to `at`; the rest is unknown.
    fn doubt(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        let sampled = if self.exact { 0 } else { self.credit.min(at.saturating_sub(self.upto)) };
        self.spend(at.saturating_sub(sampled), Spent::Unknown, steps);
        self.spend(at, Spent::OnCpu, steps);
        self.credit -= sampled;
    }

    fn spend(&mut self, to: u64, what: Spent, steps: &mut Vec<Step<W>>) {
        if to > self.upto {
            steps.push(Step::Spent { from: self.upto, to, what });
            self.upto = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `S5`: sampled at 5, standing for 4 ns; `s`: seen; `f`: followed by a trace without switches; `p`, `b`:
    /// switched out preempted or blocked; `i`: in; `w`: woken; `x`: ended; `.`: the recording ended.
    fn steps(events: &str) -> Vec<Step<u32>> {
        let mut timeline: Option<Timeline<u32>> = None;
        let mut steps = Vec::new();
        for event in events.split(' ') {
            let (what, at) = event.split_at(1);
            let at = at.parse().expect("a time");
            let timeline = timeline.get_or_insert_with(|| Timeline::new(at));
            match what {
                "S" => timeline.sampled(at, 4, &mut steps),
                "s" => timeline.seen(at, &mut steps),
                "p" => timeline.switch_out(at, Leave::Preempted, Stacks::default(), &mut steps),
                "b" => {
                    timeline.switch_out(at, Leave::Blocked(Reason::Other), Stacks::default(), &mut steps);
                }
                "i" => timeline.switch_in(at, &mut steps),
                "w" => timeline.wake(at, Some(1), &mut steps),
                "x" => timeline.end(at, &mut steps),
                "f" => timeline.followed(at, &mut steps),
                _ => timeline.finish(at, true, &mut steps),
            }
        }
        steps
    }

    /// One letter for each ns: running, blocked, runnable, preempted, unknown.
    fn drawn(events: &str) -> String {
        let letter = |what: &Spent| match what {
            Spent::OnCpu => "R",
            Spent::Blocked(_) => "b",
            Spent::Runnable => "w",
            Spent::Preempted => "p",
            Spent::Unknown => "?",
        };
        let draw = |step: &Step<u32>| match step {
            Step::Spent { from, to, what } => Some(letter(what).repeat((to - from) as usize)),
            Step::Waited(_) => None,
        };
        steps(events).iter().filter_map(draw).collect()
    }

    fn waits(events: &str) -> Vec<(u64, u64, u64, bool)> {
        let wait = |step| match step {
            Step::Waited(wait) => Some((wait.from, wait.woken_at, wait.to, wait.waker.is_some())),
            Step::Spent { .. } => None,
        };
        steps(events).into_iter().filter_map(wait).collect()
    }

    #[test]
    fn switches_and_wakeups_divide_the_time() {
        assert_eq!(drawn("i0 b3 w5 i6 p8 i9 b10 i12"), "RRRbbwRRpRbb");
        assert_eq!(
            waits("i0 b3 w5 i6 p8 i9 b10 i12"),
            [(3, 5, 6, true), (8, 8, 9, false), (10, 12, 12, false)]
        );
    }

    #[test]
    fn a_wakeup_before_the_switch_out_ends_the_wait_at_its_start() {
        assert_eq!((drawn("i0 w2 b3 i6"), waits("i0 w2 b3 i6")), ("RRRwww".into(), vec![(3, 3, 6, true)]));
        // It went on without sleeping, and slept later.
        assert_eq!(drawn("i0 w2 b3 w5 i6"), "RRRbbw");
        assert_eq!(drawn("i0 w2 p3 i5 b6 i8"), "RRRppRbb");
    }

    #[test]
    fn without_switches_samples_say_how_long_it_ran() {
        assert_eq!(drawn("s0 S4 S10 s13"), "RRRR??RRRR???");
        assert_eq!(drawn("s0 S10 S14"), "??????RRRRRRRR");
    }

    #[test]
    fn what_was_missed_is_unknown() {
        // A switch-in is missing; a switch-out is; both ends of what is known count.
        assert_eq!(drawn("i0 b3 w5 b8 i9"), "RRRbb???b");
        assert_eq!(drawn("i0 S2 i6 b8"), "RR????RR");
        assert_eq!(drawn("i0 b2 S9 b12"), "RR???????RRR");
    }

    #[test]
    fn switch_outs_alone_say_nothing_of_the_waits() {
        assert_eq!(drawn("s0 b3 b9 S20 b22"), "?????????".to_owned() + "???????" + "RRRR" + "??");
        assert!(waits("s0 b3 b9 S20 b22").is_empty());
    }

    #[test]
    fn the_end_of_the_recording_leaves_waits_open() {
        assert_eq!(
            (drawn("i0 b3 .7"), drawn("i0 b3 w5 .7"), drawn("i0 .7")),
            ("RRRbbbb".into(), "RRRbbww".into(), "RRRRRRR".into())
        );
        let Some(Step::Waited(wait)) = steps("i0 b3 .7").pop() else { panic!("a wait") };
        assert!(wait.open && wait.to == 7);
        assert_eq!(drawn("s0 S4 .9"), "RRRR", "a thread without switches is known to its last event");
    }

    #[test]
    fn a_thread_that_a_trace_follows_without_switches_lives_to_the_end() {
        assert_eq!((drawn("f0 s3 .7"), drawn("f2 x5 .9")), ("???????".into(), "???".into()));
        assert_eq!((drawn("s0 s3 .7"), drawn("f0 i2 b4 i6 .7")), ("???".into(), "??RRbbR".into()));
    }

    #[test]
    fn a_new_thread_waits_for_its_first_cpu() {
        assert_eq!(drawn("w0 i3 x5"), "wwwRR");
    }

    proptest! {
        #[test]
        fn stretches_follow_one_another(events in proptest::collection::vec((0u64..9, 0usize..9), 1..60)) {
            let mut at = 100;
            let text: Vec<String> = events.into_iter().map(|(delta, what)| {
                // Also backwards, as damaged files go.
                at = at + delta - 2;
                format!("{}{at}", ["S", "s", "p", "b", "i", "w", "x", ".", "f"][what])
            }).collect();
            let mut upto = None;
            for step in steps(&text.join(" ")) {
                match step {
                    Step::Spent { from, to, .. } => {
                        prop_assert!(from < to && upto.is_none_or(|upto| upto == from));
                        upto = Some(to);
                    }
                    Step::Waited(wait) => {
                        prop_assert!(wait.from <= wait.woken_at && wait.woken_at <= wait.to);
                        prop_assert!(upto.is_none_or(|upto| wait.to == upto));
                    }
                }
            }
        }
    }
}
