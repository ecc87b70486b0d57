// SPDX-License-Identifier: Apache-2.0
//! Limits of a run: `--max 'reason:lock=5ms/s'`, `--no-finding deadlock`.

use wallprof_model::{StallReason, State};

use super::figures::{Run, What};
use crate::duration::ns_from_duration;

/// What a limit is on.
#[derive(Clone, Debug, PartialEq)]
pub enum Limited {
    /// The time of all threads in a state, by the name of its stalls' reason.
    Reason(StallReason),
    /// Lateness with this meaning, of waits that were kept one by one.
    Meaning(String),
    /// A percentile of the durations of a kind of spans, as a share of them; 1 is the longest.
    Span { kind: String, share: f64 },
}

/// A limit in nanoseconds: per second of wall time, or of a span.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    pub on: Limited,
    pub most_ns: u64,
}

/// Why a text is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// It is not `WHAT=DURATION`, or what is neither `reason:`, `meaning:` nor `span:`.
    IsNoLimit,
    UnknownReason(String),
    /// The part after the equals sign is not a duration with a unit.
    IsNoDuration(String),
    /// A rate ends in `/s`, a length does not.
    HasWrongUnit {
        needs_rate: bool,
    },
    IsNoPercentile(String),
}

/// By how much a limit is violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    pub measured_ns: u64,
}

impl Limit {
    /// # Errors
    /// See [`LimitError`].
    pub fn parse(text: &str) -> Result<Limit, LimitError> {
        // A name may have equals signs of its own.
        let (on, value) = text.rsplit_once('=').ok_or(LimitError::IsNoLimit)?;
        let (kind, name) = on.split_once(':').ok_or(LimitError::IsNoLimit)?;
        if name.is_empty() {
            return Err(LimitError::IsNoLimit);
        }
        let on = match kind {
            "reason" => Limited::Reason(
                StallReason::from_name(name).ok_or_else(|| LimitError::UnknownReason(name.to_owned()))?,
            ),
            "meaning" => Limited::Meaning(name.to_owned()),
            "span" => {
                let (kind, percentile) = name.rsplit_once(':').ok_or(LimitError::IsNoLimit)?;
                let share = share_from_percentile(percentile)
                    .ok_or_else(|| LimitError::IsNoPercentile(percentile.to_owned()))?;
                Limited::Span { kind: kind.to_owned(), share }
            }
            _ => return Err(LimitError::IsNoLimit),
        };
        let needs_rate = !matches!(on, Limited::Span { .. });
        let duration = match (value.strip_suffix("/s"), needs_rate) {
            (Some(duration), true) => duration,
            (None, false) => value,
            _ => return Err(LimitError::HasWrongUnit { needs_rate }),
        };
        let has_unit = duration.ends_with(|c: char| c.is_alphabetic()) || duration == "0";
        match ns_from_duration(duration) {
            Ok(most_ns) if has_unit => Ok(Limit { on, most_ns }),
            _ => Err(LimitError::IsNoDuration(duration.to_owned())),
        }
    }
}

/// `p50`, `p99.9`, `max`.
fn share_from_percentile(text: &str) -> Option<f64> {
    if text == "max" {
        return Some(1.0);
    }
    let number = text.strip_prefix('p')?.parse::<f64>().ok()?;
    // 99.9 / 100.0 is not the number nearest to 0.999.
    (number > 0.0 && number < 100.0).then(|| (number * 1e6).round() / 1e8)
}

/// The measured value, if the run has more than the limit allows. `None`, too, for a kind of spans that the run
/// does not have.
pub fn exceeded(run: &Run, limit: &Limit) -> Option<Excess> {
    let ns = match &limit.on {
        Limited::Reason(reason) => run.state_ns(&What::State(state_of(*reason))),
        Limited::Meaning(name) => run.meanings.get(name).map_or(0, |sum| sum.ns),
        Limited::Span { kind, share } => {
            let durations = run.spans.get(kind)?;
            let measured_ns = if *share < 1.0 { durations.quantile_ns(*share) } else { durations.max_ns() };
            return (measured_ns > limit.most_ns).then_some(Excess { measured_ns });
        }
    };
    // Rounded up: whatever is above the limit shows as more than it.
    let measured_ns = run.rate(ns).ceil() as u64;
    (measured_ns > limit.most_ns).then_some(Excess { measured_ns })
}

/// The value that the run may have, where its limit on a meaning is exceeded only if waits that were only added up have that
/// meaning.
pub fn may_exceed(run: &Run, limit: &Limit) -> Option<Excess> {
    let Limited::Meaning(name) = &limit.on else { return None };
    let known_ns = run.meanings.get(name).map_or(0, |sum| sum.ns);
    let most_ns = known_ns.saturating_add(run.may_also_mean.get(name).copied().unwrap_or(0));
    let rate = |ns: u64| run.rate(ns).ceil() as u64;
    let is_open = rate(known_ns) <= limit.most_ns && rate(most_ns) > limit.most_ns;
    is_open.then(|| Excess { measured_ns: rate(most_ns) })
}

fn state_of(reason: StallReason) -> State {
    match reason {
        StallReason::Preempted => State::Preempted,
        StallReason::Runnable => State::Runnable,
        StallReason::Minor => State::FaultMinor,
        StallReason::Major => State::FaultMajor,
        StallReason::Blocked(reason) => State::Blocked(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::Group;
    use crate::runs::figures::{Sum, ThreadTime};
    use wallprof_model::Reason;

    #[test]
    fn limits_of_the_contract_are_read() {
        let lock = Limited::Reason(StallReason::Blocked(Reason::Lock));
        assert_eq!(Limit::parse("reason:lock=5ms/s"), Ok(Limit { on: lock, most_ns: 5_000_000 }));
        let row_lock = Limited::Meaning("row lock".into());
        assert_eq!(Limit::parse("meaning:row lock=1ms/s"), Ok(Limit { on: row_lock, most_ns: 1_000_000 }));
        let order = Limited::Span { kind: "order".into(), share: 0.999 };
        assert_eq!(Limit::parse("span:order:p99.9=200us"), Ok(Limit { on: order, most_ns: 200_000 }));
        assert_eq!(Limit::parse("meaning:a=b=0/s").map(|limit| limit.on), Ok(Limited::Meaning("a=b".into())));
    }

    #[test]
    fn other_texts_are_refused_by_their_fault() {
        for (text, error) in [
            ("lock=5ms/s", LimitError::IsNoLimit),
            ("reason:lock", LimitError::IsNoLimit),
            ("meaning:=5ms/s", LimitError::IsNoLimit),
            ("cpu:x=5ms/s", LimitError::IsNoLimit),
            ("span:order=5ms", LimitError::IsNoLimit),
            ("reason:sloth=5ms/s", LimitError::UnknownReason("sloth".into())),
            ("reason:lock=5ms", LimitError::HasWrongUnit { needs_rate: true }),
            ("span:order:p99=5ms/s", LimitError::HasWrongUnit { needs_rate: false }),
            ("reason:lock=5/s", LimitError::IsNoDuration("5".into())),
            ("span:order:p101=5ms", LimitError::IsNoPercentile("p101".into())),
        ] {
            assert_eq!(Limit::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn all_threads_count_by_second_of_wall_time() {
        let mut run = Run { duration_ns: 2_000_000_000, ..Run::default() };
        for thread in ["a", "b"] {
            let states = [(What::State(State::Blocked(Reason::Lock)), 6_000_000)].into();
            let group = Group { process: "app".into(), thread: thread.into() };
            run.threads.insert(group, ThreadTime { threads: 1, states, ..ThreadTime::default() });
        }
        run.meanings.insert("row lock".into(), Sum { count: 1, ns: 2_000_001 });
        let measured =
            |text: &str| exceeded(&run, &Limit::parse(text).unwrap()).map(|excess| excess.measured_ns);
        assert_eq!((measured("reason:lock=6ms/s"), measured("reason:lock=5ms/s")), (None, Some(6_000_000)));
        assert_eq!(measured("meaning:row lock=1ms/s"), Some(1_000_001));
        assert_eq!((measured("reason:disk=0/s"), measured("meaning:GIL=0/s")), (None, None));
    }

    #[test]
    fn percentile_of_spans_is_a_length() {
        let mut run = Run { duration_ns: 2_000_000_000, ..Run::default() };
        let durations = run.spans.entry("order".into()).or_default();
        (0..1_000).for_each(|at| durations.record(if at < 998 { 10_000 } else { 900_000 + at }));
        let measured =
            |text: &str| exceeded(&run, &Limit::parse(text).unwrap()).map(|excess| excess.measured_ns);
        assert_eq!((measured("span:order:p50=9us"), measured("span:order:p50=10us")), (Some(10_000), None));
        assert_eq!(measured("span:order:p99.9=200us"), Some(900_998));
        assert_eq!((measured("span:order:max=900us"), measured("span:order:max=1ms")), (Some(900_999), None));
        assert_eq!(measured("span:job:p50=0"), None);
    }
}
