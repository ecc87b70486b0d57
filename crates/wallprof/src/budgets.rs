// SPDX-License-Identifier: Apache-2.0
//! `--budget KIND=DURATION` of `record` and `watch`.

use wallprof_analysis::ns_from_duration;
use wallprof_model::{MAX_BUDGET_KIND, MAX_SPAN_BUDGETS, SpanBudgets};

/// The budgets of the command line.
///
/// # Errors
/// A text that is no budget; a kind with two budgets; too many of them. The sentence does not name the option.
pub fn budgets_from_texts<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<SpanBudgets, String> {
    let mut budgets = SpanBudgets::new();
    for text in texts {
        let (kind, ns) = budget(text)?;
        if budgets.insert(kind.into(), ns).is_some_and(|known| known != ns) {
            return Err(format!("`{kind}` has two budgets: give it one"));
        }
    }
    match budgets.len() > MAX_SPAN_BUDGETS {
        true => Err(format!("{} budgets are too many: give at most {MAX_SPAN_BUDGETS}", budgets.len())),
        false => Ok(budgets),
    }
}

/// A kind may have equals signs, a duration has none.
fn budget(text: &str) -> Result<(&str, u64), String> {
    let parts = text.rsplit_once('=').filter(|(kind, _)| !kind.is_empty());
    let (kind, duration) = parts.ok_or_else(|| format!("`{text}` is not KIND=DURATION: write busy=5ms"))?;
    if kind.len() > MAX_BUDGET_KIND {
        return Err(format!("a kind has {} bytes: use at most {MAX_BUDGET_KIND}", kind.len()));
    }
    match ns_from_duration(duration) {
        Ok(0) => Err(format!("the budget of `{kind}` is 0: give it a duration such as 5ms")),
        Ok(_) if duration.trim().ends_with(|c: char| c.is_ascii_digit() || c == '.') => Err(format!(
            "the budget of `{kind}` has no unit: write {kind}={0}us or {kind}={0}ms",
            duration.trim()
        )),
        Ok(ns) => Ok((kind, ns)),
        Err(error) => Err(format!("the budget of `{kind}`: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_or_refused_in_a_sentence() {
        let budgets = budgets_from_texts(["busy=5ms", "GET /a=b=200us", "busy=5ms"]).unwrap();
        assert_eq!(budgets, [("busy".into(), 5_000_000), ("GET /a=b".into(), 200_000)].into());
        let long = format!("{}=5ms", "k".repeat(10_000));
        for (texts, part) in [
            (vec!["busy=5ms", "busy=6ms"], "two budgets"),
            (vec!["busy"], "write busy=5ms"),
            (vec!["=5ms"], "write busy=5ms"),
            (vec!["busy=5"], "write busy=5us or busy=5ms"),
            (vec!["busy=0us"], "is 0"),
            (vec!["busy=soon"], "the budget of `busy`"),
            (vec![&long], "10000 bytes"),
        ] {
            let error = budgets_from_texts(texts.iter().copied()).unwrap_err();
            assert!(error.contains(part), "{texts:.20?}: {error:.200}");
        }
        let many: Vec<String> = (0..=MAX_SPAN_BUDGETS).map(|kind| format!("kind{kind}=1ms")).collect();
        assert!(budgets_from_texts(many.iter().map(String::as_str)).unwrap_err().contains("65 budgets"));
    }
}
