// SPDX-License-Identifier: Apache-2.0
//! Severities: names for the lateness of a stall, from the user's `warning=100us,critical=500us`.
//!
//! Pure. A stall is counted once, under the highest severity that it reaches.

use std::fmt;

use wallprof_analysis::ns_from_duration;

/// The name for stalls below every severity, and for those that raise none.
pub(crate) const BELOW: &str = "info";
/// Limit on severities: each is a value of a label on every series of stalls.
const MAX_COUNT: usize = 8;
const MAX_NAME_LEN: usize = 32;

/// Names with the shortest lateness of each, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Severities {
    steps: Vec<(String, u64)>,
}

/// Why a text is not a list of severities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeverityError {
    NoEquals { part: String },
    Name { name: String },
    Duration { name: String, error: String },
    SameName { name: String },
    SameDuration { first: String, second: String },
    TooMany,
}

impl fmt::Display for SeverityError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            SeverityError::NoEquals { part } => {
                write!(f, "`{part}` is not a severity: write NAME=DURATION, such as critical=500us")
            }
            SeverityError::Name { name } => write!(
                f,
                "`{name}` cannot name a severity: use at most {MAX_NAME_LEN} of the characters a-z 0-9 _ -, and not {BELOW}"
            ),
            SeverityError::Duration { name, error } => write!(f, "the duration of {name}: {error}"),
            SeverityError::SameName { name } => write!(f, "{name} is given twice: give it once"),
            SeverityError::SameDuration { first, second } => {
                write!(f, "{first} and {second} start at the same duration: give each its own")
            }
            SeverityError::TooMany => {
                write!(f, "more than {MAX_COUNT} severities: each makes series of its own")
            }
        }
    }
}

impl Default for Severities {
    /// `warning=100us,critical=500us`.
    fn default() -> Self {
        Severities { steps: vec![("warning".into(), 100_000), ("critical".into(), 500_000)] }
    }
}

impl Severities {
    /// Reads `NAME=DURATION,…` in any order.
    ///
    /// # Errors
    /// The wrong part, and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, SeverityError> {
        let mut steps: Vec<(String, u64)> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (name, duration) = part
                .split_once('=')
                .ok_or_else(|| SeverityError::NoEquals { part: part.chars().take(64).collect() })?;
            let name = name_from_text(name.trim())?;
            let ns = ns_from_duration(duration.trim())
                .map_err(|error| SeverityError::Duration { name: name.clone(), error: error.to_string() })?;
            if steps.iter().any(|(known, _)| *known == name) {
                return Err(SeverityError::SameName { name });
            }
            if let Some((first, _)) = steps.iter().find(|(_, known)| *known == ns) {
                return Err(SeverityError::SameDuration { first: first.clone(), second: name });
            }
            steps.push((name, ns));
        }
        if steps.len() > MAX_COUNT {
            return Err(SeverityError::TooMany);
        }
        steps.sort_by_key(|(_, ns)| *ns);
        Ok(Severities { steps })
    }

    /// The severity of a stall that made its thread late by `late_ns`.
    pub fn of(&self, late_ns: u64) -> &str {
        let reached = self.steps.iter().rev().find(|(_, least)| late_ns >= *least);
        reached.map_or(BELOW, |(name, _)| name)
    }

    /// The shortest lateness of a severity, ns.
    pub fn least_ns(&self, name: &str) -> Option<u64> {
        self.steps.iter().find(|(known, _)| known == name).map(|(_, ns)| *ns)
    }

    /// The names, that of the shortest stalls first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|(name, _)| name.as_str())
    }
}

fn name_from_text(name: &str) -> Result<String, SeverityError> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    match !name.is_empty() && name.len() <= MAX_NAME_LEN && name != BELOW && name.chars().all(fits) {
        true => Ok(name.to_string()),
        false => Err(SeverityError::Name { name: name.chars().take(64).collect() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_has_the_highest_severity_that_it_reaches() {
        let severities = Severities::parse("critical=500us, warning=100us").unwrap();
        assert_eq!(severities, Severities::default());
        let of = |ns| severities.of(ns);
        assert_eq!((of(99_999), of(100_000), of(499_999)), ("info", "warning", "warning"));
        assert_eq!((of(500_000), of(u64::MAX)), ("critical", "critical"));
        assert_eq!(severities.least_ns("critical"), Some(500_000));
        assert_eq!(severities.least_ns("fatal"), None);
    }

    #[test]
    fn errors_name_the_wrong_part() {
        let refused = |text: &str| Severities::parse(text).unwrap_err().to_string();
        assert!(refused("").contains("critical=500us"));
        assert!(refused("critical").contains("NAME=DURATION"));
        assert!(refused("Critical=1ms").contains("a-z"));
        assert!(refused("info=1ms").contains("info"));
        assert!(refused("a\"}=1ms").contains("cannot name"));
        assert!(refused("a=fast").contains("the duration of a"));
        assert!(refused("a=1ms,a=2ms").contains("twice"));
        assert!(refused("a=1ms,b=1000us").contains("a and b"));
        let many: Vec<_> = (1..10).map(|n| format!("s{n}={n}ms")).collect();
        assert!(refused(&many.join(",")).contains("more than 8"));
        assert!(refused(&"x".repeat(100_000)).len() < 200, "no message echoes a flood");
    }
}
