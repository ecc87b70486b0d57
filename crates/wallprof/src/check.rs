//! `wallprof check`: a gate for CI. Exit code 5 with a sentence for each violated limit.

use std::process::ExitCode;

use wallprof_analysis::rules::RULES;
use wallprof_analysis::runs::{Limit, LimitError, Limited, Run, exceeded};
use wallprof_analysis::text_from_ns;

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
    let run = runs::read(&args.file, &args.meaning.rules()?)?;
    for limit in &limits {
        if let Limited::Span { kind, .. } = &limit.on
            && !run.spans.contains_key(kind)
        {
            return Err(Failure::failed(format!(
                "the limit on the span `{kind}` cannot be checked: there is no span of this kind in {}: \
                 mark them in the program, or add them with `wallprof import --spans FILE.csv`",
                args.file.display()
            )));
        }
    }
    let violations = violations(&run, &limits, &args.no_findings);
    violations.iter().for_each(|violation| say(violation));
    match violations.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::from(Exit::LimitExceeded as u8)),
    }
}

/// The name that stands for every finding.
const ANY: &str = "any";

/// A sentence for each limit that does not hold.
fn violations(run: &Run, limits: &[Limit], no_findings: &[String]) -> Vec<String> {
    let of_limits = limits.iter().filter_map(|limit| {
        let measured = exceeded(run, limit)?.measured_ns;
        let (has, most) = (text_from_ns(measured, "µs"), text_from_ns(limit.most_ns, "µs"));
        let of = if matches!(limit.on, Limited::Span { .. }) { "" } else { " of each second" };
        Some(format!("{} took {has}{of}, more than the limit of {most}", name_of(&limit.on)))
    });
    let is_refused = |rule: &String| no_findings.iter().any(|name| name == ANY || name == rule);
    let of_findings = run
        .findings
        .iter()
        .filter(|finding| is_refused(&finding.rule))
        .map(|finding| format!("the finding {} is there: {}", finding.rule, finding.title));
    of_limits.chain(of_findings).collect()
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
    use wallprof_analysis::runs::{FoundInRun, Sum};

    #[test]
    fn each_violated_limit_has_a_sentence() {
        let mut run = Run { duration_ns: 1_000_000_000, ..Run::default() };
        run.meanings.insert("row lock".into(), Sum { count: 3, ns: 7_000_000 });
        run.findings.push(FoundInRun { rule: "deadlock".into(), title: "two threads".into(), total_ns: 1 });
        let limit = |text: &str| Limit::parse(text).unwrap();
        let found = violations(
            &run,
            &[limit("meaning:row lock=5ms/s"), limit("meaning:GIL=0/s"), limit("meaning:row lock=7ms/s")],
            &["deadlock".into(), "lock-wait".into()],
        );
        assert_eq!(
            found,
            [
                "waits with the meaning `row lock` took 7.00 ms of each second, more than the limit of 5.00 ms",
                "the finding deadlock is there: two threads",
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
        assert_eq!(violations(&run, &[], &[ANY.into()]).len(), 1);
        assert!(violations(&run, &[limit("reason:lock=0/s")], &["lock-wait".into()]).is_empty());
    }
}
