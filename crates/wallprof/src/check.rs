// SPDX-License-Identifier: Apache-2.0
//! `wallprof check`: a gate for CI. Exit code 5 with a sentence for each violated limit.

use std::process::ExitCode;

use wallprof_analysis::runs::{FoundInRun, Limit, LimitError, Limited, Run, exceeded, may_exceed};
use wallprof_analysis::text_from_ns;
use wallprof_findings::RULES;
use wallprof_model::profile::Cause;

use crate::args::CheckArgs;
use crate::failure::{Exit, Failure, say};
use crate::runs;

/// Runs the command. The options are checked before the file is opened.
pub fn run(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let limits = args.limits.iter().map(|text| {
        Limit::parse(text).map_err(|error| Failure::usage(format!("--max {text}: {}", sentence(&error))))
    });
    let limits: Vec<Limit> = limits.collect::<Result<_, _>>()?;
    if limits.is_empty() && args.no_findings.is_empty() {
        return Err(Failure::usage(
            "check needs a limit: give --max 'reason:lock=5ms/s' or --no-finding deadlock",
        ));
    }
    for name in &args.no_findings {
        if name != ANY && !RULES.iter().any(|rule| rule.name == *name) {
            return Err(Failure::usage(format!(
                "--no-finding {name}: there is no such finding (`wallprof help findings` lists them; `{ANY}` is all)"
            )));
        }
    }
    let rules = args.meaning.rules()?;
    let run = runs::read(&args.file, &rules)?;
    for limit in &limits {
        match &limit.on {
            Limited::Span { kind, .. } if !run.spans.contains_key(kind) => {
                return Err(Failure::failed(format!(
                    "the limit on the span `{kind}` cannot be checked: there is no span of this kind in {}: \
                     mark them in the program, or add them with `wallprof import --spans FILE.csv`",
                    args.file.display()
                )));
            }
            Limited::Meaning(name) if !run.meanings.contains_key(name) && !rules.can_mean(name) => {
                return Err(Failure::usage(format!(
                    "--max meaning:{name}: no wait that made a thread late has this meaning in {}, and no rule gives \
                     it: `wallprof waits` lists the rules",
                    args.file.display()
                )));
            }
            _ => {}
        }
    }
    let (excused, refused) = excused(refused(&run, &args.no_findings), args.shared_machine);
    excused.iter().for_each(|found| say(&excuse(found)));
    let violations = violations(&run, &limits, &refused);
    violations.iter().for_each(|violation| say(violation));
    let mut open: Vec<String> = limits.iter().filter_map(|limit| open_sentence(&run, limit)).collect();
    let last = open.pop_if(|_| violations.is_empty());
    open.iter().for_each(|open| say(open));
    match (violations.is_empty(), last) {
        (true, None) => Ok(ExitCode::SUCCESS),
        (true, Some(open)) => Err(Failure::failed(open)),
        (false, _) => Ok(ExitCode::from(Exit::LimitExceeded as u8)),
    }
}

/// The name that stands for every finding.
const ANY: &str = "any";

/// The findings that must not be there.
fn refused<'r>(run: &'r Run, no_findings: &[String]) -> Vec<&'r FoundInRun> {
    let is_refused = |rule: &String| no_findings.iter().any(|name| name == ANY || name == rule);
    run.findings.iter().filter(|found| is_refused(&found.rule)).collect()
}

/// Those that are excused, and those that are not. A machine that others use excuses what it does itself.
fn excused(refused: Vec<&FoundInRun>, shared_machine: bool) -> (Vec<&FoundInRun>, Vec<&FoundInRun>) {
    refused.into_iter().partition(|found| shared_machine && found.cause == Cause::Machine)
}

fn excuse(found: &FoundInRun) -> String {
    format!("the finding {} is excused, the machine is its cause: {}", found.rule, found.title)
}

/// A sentence for each limit that does not hold, and for each refused finding.
fn violations(run: &Run, limits: &[Limit], refused: &[&FoundInRun]) -> Vec<String> {
    let of_limits = limits.iter().filter_map(|limit| {
        let measured = exceeded(run, limit)?.measured_ns;
        let (has, most) = (text_from_ns(measured, "µs"), text_from_ns(limit.most_ns, "µs"));
        let of = if matches!(limit.on, Limited::Span { .. }) { "" } else { " of each second" };
        Some(format!("{} took {has}{of}, more than the limit of {most}", name_of(&limit.on)))
    });
    let of_findings =
        refused.iter().map(|found| format!("the finding {} is there: {}", found.rule, found.title));
    of_limits.chain(of_findings).collect()
}

/// Why a limit on a meaning cannot be checked.
fn open_sentence(run: &Run, limit: &Limit) -> Option<String> {
    let most = text_from_ns(may_exceed(run, limit)?.measured_ns, "µs");
    Some(format!(
        "the limit on {} cannot be checked: waits that were too many to be kept one by one may have this \
         meaning, too, which makes up to {most} of each second: limit their reason instead, or record with a \
         larger --min-stall",
        name_of(&limit.on)
    ))
}

fn name_of(on: &Limited) -> String {
    match on {
        Limited::Reason(reason) => format!("the reason {}", reason.name()),
        Limited::Meaning(name) => format!("waits with the meaning `{name}`"),
        Limited::Span { kind, share: 1.0.. } => format!("the longest span `{kind}`"),
        Limited::Span { kind, share } => {
            let percentile = format!("{:.6}", share * 100.0);
            format!("p{} of the span `{kind}`", percentile.trim_end_matches('0').trim_end_matches('.'))
        }
    }
}

fn sentence(error: &LimitError) -> String {
    match error {
        LimitError::IsNoLimit => {
            "this is no limit: write reason:lock=5ms/s, meaning:row lock=1ms/s or span:order:p99.9=200us"
                .into()
        }
        LimitError::UnknownReason(name) => {
            format!("`{name}` is no reason (`wallprof stalls --help` lists them)")
        }
        LimitError::IsNoDuration(text) => format!("`{text}` is no duration with a unit: write 5ms"),
        LimitError::HasWrongUnit { needs_rate: true } => {
            "this limit is a time per second: write 5ms/s".into()
        }
        LimitError::HasWrongUnit { needs_rate: false } => "this limit is a length: write 200us".into(),
        LimitError::IsNoPercentile(text) => format!("`{text}` is no percentile: write p99.9 or max"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_analysis::runs::Sum;

    fn finding(rule: &str, cause: Cause) -> FoundInRun {
        FoundInRun { rule: rule.into(), cause, title: format!("a {rule}"), total_ns: 1 }
    }

    #[test]
    fn a_shared_machine_excuses_its_own_doing_only() {
        let findings = vec![finding("preempted", Cause::Machine), finding("preempted", Cause::Program)];
        let run = Run { findings, ..Run::default() };
        let causes = |found: Vec<&FoundInRun>| found.iter().map(|found| found.cause).collect::<Vec<_>>();
        for name in [ANY, "preempted"] {
            let (machines, programs) = excused(refused(&run, &[name.into()]), true);
            assert_eq!(
                excuse(machines[0]),
                "the finding preempted is excused, the machine is its cause: a preempted"
            );
            assert_eq!((causes(machines), causes(programs)), (vec![Cause::Machine], vec![Cause::Program]));
        }
        let (machines, all) = excused(refused(&run, &[ANY.into()]), false);
        assert_eq!((machines.len(), all.len()), (0, 2));
        assert_eq!(refused(&run, &["deadlock".into()]).len(), 0);
    }

    #[test]
    fn each_violated_limit_has_a_sentence() {
        let mut run = Run { duration_ns: 1_000_000_000, ..Run::default() };
        run.meanings.insert("row lock".into(), Sum { count: 3, ns: 7_000_000 });
        run.findings.push(finding("deadlock", Cause::Program));
        let limit = |text: &str| Limit::parse(text).unwrap();
        let found = violations(
            &run,
            &[limit("meaning:row lock=5ms/s"), limit("meaning:GIL=0/s"), limit("meaning:row lock=7ms/s")],
            &refused(&run, &["deadlock".into(), "lock-wait".into()]),
        );
        assert_eq!(
            found,
            [
                "waits with the meaning `row lock` took 7.00 ms of each second, more than the limit of 5.00 ms",
                "the finding deadlock is there: a deadlock",
            ]
        );
        run.spans.entry("order".into()).or_default().record(900_000);
        let found = violations(&run, &[limit("span:order:p99.9=200us"), limit("span:order:max=200us")], &[]);
        assert_eq!(
            found,
            [
                "p99.9 of the span `order` took 900 µs, more than the limit of 200 µs",
                "the longest span `order` took 900 µs, more than the limit of 200 µs",
            ]
        );
        assert_eq!(violations(&run, &[], &refused(&run, &[ANY.into()])).len(), 1);
        assert!(
            violations(&run, &[limit("reason:lock=0/s")], &refused(&run, &["lock-wait".into()])).is_empty()
        );
    }
}
