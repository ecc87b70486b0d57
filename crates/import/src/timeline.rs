// SPDX-License-Identifier: Apache-2.0
//! One thread's activity over time, by the records of a perf.data file: intervals on a CPU, waits, and time
//! of unknown state.
//!
//! Pure. There are two kinds of files. If switches in both directions are recorded, running time is between
//! switch-in and switch-out. Otherwise it is the weight of samples. A thread counts as the first kind from
//! its first switch-in on.

use wallprof_model::{Reason, StackId};

/// The state in an interval of a thread's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spent {
    OnCpu,
    Runnable,
    Preempted,
    Blocked(Reason),
    /// Between two events that do not show the state.
    Unknown,
}

/// The end of a wait: its time and the waker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wake<W> {
    pub at: u64,
    pub waker: Option<W>,
}

/// The reason why a thread left its CPU.
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
    /// The end of the blocked part and the start of the runnable one.
    pub woken_at: u64,
    pub why: Leave,
    pub stacks: Stacks,
    pub waker: Option<W>,
    /// The recording ended before the wait did.
    pub open: bool,
}

/// A step of a timeline. Intervals follow one another without gap or overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step<W> {
    Spent { from: u64, to: u64, what: Spent },
    Waited(Wait<W>),
}

#[derive(Clone, Debug)]
enum Activity<W> {
    /// It may be running.
    Unknown,
    /// `woken`: a wakeup that came while it ran. It ends the next wait.
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
    /// Woken from a sleep whose start was not recorded, or new.
    Runnable,
}

/// One thread.
#[derive(Clone, Debug)]
pub(crate) struct Timeline<W> {
    upto: u64,
    activity: Activity<W>,
    /// Its switch-ins are recorded, too.
    exact: bool,
    /// Sampled running time that is not assigned to an interval yet.
    credit: u64,
    /// A trace follows it, but no record shows when it has a CPU.
    is_followed: bool,
}

impl<W> Timeline<W> {
    /// A thread whose first event is at `from`.
    pub(crate) fn new(from: u64) -> Self {
        Timeline { upto: from, activity: Activity::Unknown, exact: false, credit: 0, is_followed: false }
    }

    /// The time up to which all steps were emitted.
    pub(crate) fn upto(&self) -> u64 {
        self.upto
    }

    /// It was sampled running. The sample has a weight of `weight` ns before it.
    pub(crate) fn sampled(&mut self, at: u64, weight: u64, steps: &mut Vec<Step<W>>) {
        self.credit = self.credit.saturating_add(weight);
        match &mut self.activity {
            Activity::Running { sure_until, .. } => *sure_until = at.max(*sure_until),
            Activity::Waiting { .. } | Activity::Runnable => {
                self.lose_track(at, steps);
                self.activity = Activity::Running { sure_until: at, woken: None };
            }
            Activity::Unknown => self.doubt(at, steps),
        }
    }

    /// Another event of it was recorded.
    pub(crate) fn seen(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        if matches!(self.activity, Activity::Unknown) {
            self.doubt(at, steps);
        }
    }

    /// A trace of it starts in a recording without switches. It lives until the recording ends, but the times
    /// on a CPU are not known.
    pub(crate) fn followed(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        self.is_followed = true;
        self.seen(at, steps);
    }

    pub(crate) fn switch_out(&mut self, at: u64, why: Leave, stacks: Stacks, steps: &mut Vec<Step<W>>) {
        let early = match std::mem::replace(&mut self.activity, Activity::Unknown) {
            Activity::Running { woken, .. } => {
                self.run(at, steps);
                woken.filter(|_| why != Leave::Preempted)
            }
            activity => {
                self.activity = activity;
                self.lose_track(at, steps);
                None
            }
        };
        self.activity = Activity::Waiting { from: self.upto, why, stacks, early, wake: None };
    }

    /// Whether the last event was a switch-out.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.activity, Activity::Waiting { .. })
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.activity, Activity::Running { .. })
    }

    pub(crate) fn switch_in(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        match std::mem::replace(&mut self.activity, Activity::Unknown) {
            Activity::Waiting { from, why, stacks, early, wake } => {
                let wake = wake.or(early.map(|wake| Wake { at: from, ..wake }));
                self.end_wait(at, from, why, stacks, wake, false, steps);
            }
            Activity::Runnable => self.spend(at, Spent::Runnable, steps),
            Activity::Unknown => self.doubt(at, steps),
            Activity::Running { sure_until, .. } => {
                // The switch-out after it was last seen running is missing.
                self.run(sure_until.min(at), steps);
                self.spend(at, Spent::Unknown, steps);
            }
        }
        self.exact = true;
        self.activity = Activity::Running { sure_until: self.upto, woken: None };
    }

    pub(crate) fn wake(&mut self, at: u64, waker: Option<W>, steps: &mut Vec<Step<W>>) {
        match &mut self.activity {
            Activity::Waiting { why: Leave::Blocked(_), wake, .. } => {
                wake.get_or_insert(Wake { at, waker });
            }
            Activity::Running { woken, .. } => *woken = Some(Wake { at, waker }),
            Activity::Unknown => {
                self.doubt(at, steps);
                self.activity = Activity::Runnable;
            }
            Activity::Waiting { .. } | Activity::Runnable => {}
        }
    }

    /// The thread has ended.
    pub(crate) fn end(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        match self.activity {
            Activity::Running { .. } => self.run(at, steps),
            _ => self.lose_track(at, steps),
        }
        self.activity = Activity::Unknown;
        self.is_followed = false;
    }

    /// The recording has ended. The activity continues up to the end if its end would have been recorded.
    pub(crate) fn finish(&mut self, at: u64, switch_ins_are_recorded: bool, steps: &mut Vec<Step<W>>) {
        match std::mem::replace(&mut self.activity, Activity::Unknown) {
            Activity::Running { .. } if self.exact => self.run(at, steps),
            Activity::Waiting { from, why, stacks, early, wake } if switch_ins_are_recorded => {
                let wake = wake.or(early.map(|wake| Wake { at: from, ..wake }));
                self.end_wait(at, from, why, stacks, wake, true, steps);
            }
            Activity::Runnable if switch_ins_are_recorded => self.spend(at, Spent::Runnable, steps),
            Activity::Running { sure_until, .. } => self.run(sure_until, steps),
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

    /// Its activity has changed since the last switch, but the time is not known.
    fn lose_track(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        if let Activity::Waiting { why: Leave::Blocked(reason), wake: Some(wake), .. } = &self.activity {
            let (reason, woken_at) = (*reason, wake.at.min(at));
            self.spend(woken_at, Spent::Blocked(reason), steps);
        }
        self.doubt(at, steps);
    }

    /// Running up to `at`: the whole interval if switches are known, else the weight of samples.
    fn run(&mut self, at: u64, steps: &mut Vec<Step<W>>) {
        if self.exact {
            self.credit = 0;
            self.spend(at, Spent::OnCpu, steps);
        } else {
            self.doubt(at, steps);
        }
    }

    /// Up to `at`: the weight of samples is running time right before `at`, the rest is unknown.
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

    /// `S5`: sampled at 5 with a weight of 4 ns; `s`: seen; `f`: followed by a trace without switches; `p`,
    /// `b`: switched out preempted or blocked; `i`: switched in; `w`: woken; `x`: ended; `.`: the recording
    /// ended.
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

    /// One letter for each ns: running, blocked, woken, preempted, unknown.
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
    fn wakeup_before_the_switch_out_ends_the_wait_at_its_start() {
        assert_eq!((drawn("i0 w2 b3 i6"), waits("i0 w2 b3 i6")), ("RRRwww".into(), vec![(3, 3, 6, true)]));
        // It continued without sleeping, and slept later.
        assert_eq!(drawn("i0 w2 b3 w5 i6"), "RRRbbw");
        assert_eq!(drawn("i0 w2 p3 i5 b6 i8"), "RRRppRbb");
    }

    #[test]
    fn without_switches_samples_give_running_time() {
        assert_eq!(drawn("s0 S4 S10 s13"), "RRRR??RRRR???");
        assert_eq!(drawn("s0 S10 S14"), "??????RRRRRRRR");
    }

    #[test]
    fn missed_switches_leave_unknown_time() {
        // A switch-in is missing, a switch-out is missing, both are missing.
        assert_eq!(drawn("i0 b3 w5 b8 i9"), "RRRbb???b");
        assert_eq!(drawn("i0 S2 i6 b8"), "RR????RR");
        assert_eq!(drawn("i0 b2 S9 b12"), "RR???????RRR");
    }

    #[test]
    fn switch_outs_alone_give_no_waits() {
        assert_eq!(drawn("s0 b3 b9 S20 b22"), "?????????".to_owned() + "???????" + "RRRR" + "??");
        assert!(waits("s0 b3 b9 S20 b22").is_empty());
    }

    #[test]
    fn end_of_the_recording_leaves_waits_open() {
        assert_eq!(
            (drawn("i0 b3 .7"), drawn("i0 b3 w5 .7"), drawn("i0 .7")),
            ("RRRbbbb".into(), "RRRbbww".into(), "RRRRRRR".into())
        );
        let Some(Step::Waited(wait)) = steps("i0 b3 .7").pop() else { panic!("a wait") };
        assert!(wait.open && wait.to == 7);
        assert_eq!(drawn("s0 S4 .9"), "RRRR", "a thread without switches is known to its last event");
    }

    #[test]
    fn thread_followed_without_switches_lives_to_the_end() {
        assert_eq!((drawn("f0 s3 .7"), drawn("f2 x5 .9")), ("???????".into(), "???".into()));
        assert_eq!((drawn("s0 s3 .7"), drawn("f0 i2 b4 i6 .7")), ("???".into(), "??RRbbR".into()));
    }

    #[test]
    fn new_thread_waits_for_its_first_cpu() {
        assert_eq!(drawn("w0 i3 x5"), "wwwRR");
    }

    proptest! {
        #[test]
        fn intervals_follow_one_another(events in proptest::collection::vec((0u64..9, 0usize..9), 1..60)) {
            let mut at = 100;
            let text: Vec<String> = events.into_iter().map(|(delta, what)| {
                // Times may decrease, as in damaged files.
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
