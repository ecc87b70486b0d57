//! What is worth saying: large enough to matter, and too improbable for chance, however many were asked.

use super::evidence::Change;

/// In at most this share of comparisons of equal sides is anything at all news, however the tests depend on
/// each other (Holm 1979), as long as each test's p is right. It is where windows are independent or drift mildly: of 1000
/// drawn pairs 0 to 8 were false up to a correlation of neighbours of 0.5. At 0.8 it is not: 11 to 34 were. Too few
/// windows cannot tell so slow a drift from a difference.
pub const FALSE_NEWS: f64 = 0.01;

/// Below this a difference is not news, however certain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// Nanoseconds per second of wall time.
    pub ns: f64,
    /// Share of the larger side.
    pub share: f64,
}

impl Default for Floor {
    /// A thousandth of a second per second, and a twentieth of what was there.
    fn default() -> Self {
        Floor { ns: 1e6, share: 0.05 }
    }
}

impl Floor {
    /// Whether so much time could differ by enough.
    pub fn could_be_reached(&self, change: &Change) -> bool {
        change.a_ns + change.b_ns >= self.ns
    }

    pub fn is_reached(&self, change: &Change) -> bool {
        let difference = change.difference_ns().abs();
        difference >= self.ns && difference >= self.share * change.a_ns.max(change.b_ns)
    }
}

/// The two conditions together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rule {
    pub floor: Floor,
    /// Largest p that is not chance.
    most_p: f64,
}

impl Rule {
    /// Holm's step-down procedure on the p of everything that was asked.
    pub fn new(floor: Floor, mut asked: Vec<f64>) -> Self {
        asked.sort_by(f64::total_cmp);
        let count = asked.len();
        let limit = |rank: usize| FALSE_NEWS / (count - rank).max(1) as f64;
        let rejected = asked.iter().enumerate().take_while(|(rank, p)| **p <= limit(*rank)).count();
        Rule { floor, most_p: limit(rejected.min(count)) }
    }

    pub fn is_news(&self, change: &Change) -> bool {
        self.floor.is_reached(change) && change.uncertainty.is_some_and(|found| found.p <= self.most_p)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::evidence::Uncertainty;

    fn change(a_ms: f64, b_ms: f64, p: f64) -> Change {
        let uncertainty = Some(Uncertainty { margin_ns: 0.0, p });
        Change { a_ns: a_ms * 1e6, b_ns: b_ms * 1e6, uncertainty }
    }

    #[test]
    fn small_differences_are_no_news_however_certain() {
        let rule = Rule::new(Floor::default(), vec![0.0; 3]);
        assert!(rule.is_news(&change(10.0, 11.1, 0.0)));
        assert!(!rule.is_news(&change(1.0, 1.9, 0.0)), "under a thousandth");
        assert!(!rule.is_news(&change(100.0, 104.0, 0.0)), "under a twentieth");
        assert!(!rule.is_news(&Change { uncertainty: None, ..change(0.0, 100.0, 0.0) }));
    }

    #[test]
    fn the_more_is_asked_the_more_is_demanded() {
        let news = |p: f64, others: usize| {
            let mut asked = vec![0.5; others];
            asked.push(p);
            Rule::new(Floor::default(), asked).is_news(&change(10.0, 20.0, p))
        };
        assert!(news(0.009, 0) && !news(0.009, 1));
        assert!(news(0.00009, 100) && !news(0.00011, 100));
    }

    /// With five asked, the limits are 1/500, 1/400, 1/300 …: the third p stops the procedure.
    #[test]
    fn holms_steps() {
        let rule = Rule::new(Floor::default(), vec![0.0024, 0.0019, 0.0034, 0.003, 0.9]);
        let is_news = |p: f64| rule.is_news(&change(10.0, 20.0, p));
        assert!(is_news(0.0019) && is_news(0.0024) && is_news(0.003));
        assert!(is_news(0.0034), "4th limit is 1/200");
        assert!(!is_news(0.9));
        let stopped = Rule::new(Floor::default(), vec![0.0019, 0.0026, 0.0026, 0.9, 0.9]);
        assert!(!stopped.is_news(&change(10.0, 20.0, 0.0026)));
    }
}
