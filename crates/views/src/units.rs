// SPDX-License-Identifier: Apache-2.0
//! Numbers as people read them: three significant digits with a unit, shares, counts.

use wallprof_analysis::text_from_ns;

use crate::line::width;
use crate::style::Style;

/// A duration: see [`text_from_ns`].
pub(crate) fn time(ns: u64, style: &Style) -> String {
    text_from_ns(ns, style.pick("µs", "us"))
}

/// The one format of all times of a table: a unit, with two decimals. `0.31 ms` stands beside `5.15 ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeColumn {
    /// The last decimal, ns.
    quantum_ns: u64,
    unit: &'static str,
}

impl TimeColumn {
    const SECONDS: TimeColumn = TimeColumn { quantum_ns: 10_000_000, unit: "s" };
    const MILLISECONDS: TimeColumn = TimeColumn { quantum_ns: 10_000, unit: "ms" };

    /// For these times: seconds from 100 s on, where none is too short for them, and from 10,000 s on; else
    /// milliseconds; microseconds where all are shorter than a millisecond.
    pub fn of(times_ns: impl IntoIterator<Item = u64>, style: &Style) -> Self {
        let (mut most, mut least) = (0, u64::MAX);
        for ns in times_ns.into_iter().filter(|ns| *ns > 0) {
            (most, least) = (ns.max(most), ns.min(least));
        }
        match most {
            10_000_000_000_000.. => Self::SECONDS,
            100_000_000_000.. if least >= Self::SECONDS.quantum_ns => Self::SECONDS,
            1_000_000.. => Self::MILLISECONDS,
            _ => TimeColumn { quantum_ns: 10, unit: style.pick("µs", "us") },
        }
    }

    /// For many columns of sums: seconds from 10 s on, so that numbers stay short.
    pub fn of_sums(times_ns: impl IntoIterator<Item = u64> + Clone, style: &Style) -> Self {
        match times_ns.clone().into_iter().max() {
            Some(10_000_000_000..) => Self::SECONDS,
            _ => Self::of(times_ns, style),
        }
    }

    pub fn text(self, ns: u64) -> String {
        let quanta = (u128::from(ns) + u128::from(self.quantum_ns / 2)) / u128::from(self.quantum_ns);
        self.text_from_quanta(quanta as u64, ns)
    }

    /// Texts of parts that add up to the text of their sum, digit by digit: the parts that lose most by
    /// rounding down are rounded up (largest remainder).
    pub fn adding_up(self, parts_ns: &[u64]) -> Vec<String> {
        let quantum = self.quantum_ns;
        let sum = parts_ns.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns));
        let mut quanta: Vec<u64> = parts_ns.iter().map(|ns| ns / quantum).collect();
        let whole = sum / quantum + u64::from(sum % quantum >= quantum / 2);
        let missing = whole.saturating_sub(quanta.iter().fold(0u64, |sum, part| sum.saturating_add(*part)));
        let mut by_remainder: Vec<usize> = (0..parts_ns.len()).collect();
        by_remainder.sort_by_key(|&at| (std::cmp::Reverse(parts_ns[at] % quantum), at));
        for at in by_remainder.into_iter().take(missing as usize) {
            quanta[at] += 1;
        }
        quanta.into_iter().zip(parts_ns).map(|(quanta, ns)| self.text_from_quanta(quanta, *ns)).collect()
    }

    fn text_from_quanta(self, quanta: u64, ns: u64) -> String {
        match quanta {
            0 if ns > 0 => format!("<0.01 {}", self.unit),
            _ => format!("{}.{:02} {}", count(quanta / 100), quanta % 100, self.unit),
        }
    }
}

/// Columns for texts at the right of a table: the longest and two blanks, at least `least`.
pub(crate) fn columns_for<'t>(texts: impl IntoIterator<Item = &'t String>, least: usize) -> usize {
    texts.into_iter().map(|text| width(text) + 2).max().unwrap_or(0).max(least)
}

fn decimal(scaled: u128, scale: u128, decimals: usize) -> String {
    if decimals == 0 {
        return scaled.to_string();
    }
    format!("{}.{:0decimals$}", scaled / scale, scaled % scale)
}

/// A share in percent with one decimal: `61.2 %`; a share above 0 that rounds to 0 is `<0.1 %`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0 %".into();
    }
    let permille = (u128::from(part) * 1_000 + u128::from(whole) / 2) / u128::from(whole);
    if permille == 0 { "<0.1 %".into() } else { format!("{} %", decimal(permille, 10, 1)) }
}

/// A size: `812 B`, `12.3 KiB`, `4.5 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// A whole number with commas: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 stall`, `41 stalls`.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_have_an_ascii_name() {
        assert_eq!(time(50_000, &Style::plain()), "50.0 µs");
        let ascii = Style { unicode: false, ..Style::plain() };
        assert_eq!(time(50_000, &ascii), "50.0 us");
    }

    fn column(times: &[u64]) -> TimeColumn {
        TimeColumn::of(times.iter().copied(), &Style::plain())
    }

    #[test]
    fn times_of_one_table_have_one_unit() {
        let texts =
            |times: &[u64]| -> Vec<String> { times.iter().map(|ns| column(times).text(*ns)).collect() };
        assert_eq!(texts(&[5_150_000, 310_000, 0]), ["5.15 ms", "0.31 ms", "0.00 ms"]);
        assert_eq!(texts(&[99_000_000_000, 2_000]), ["99,000.00 ms", "<0.01 ms"]);
        assert_eq!(texts(&[166_123_000_000, 402_000_000]), ["166.12 s", "0.40 s"]);
        assert_eq!(texts(&[166_123_000_000, 310_000]), ["166,123.00 ms", "0.31 ms"]);
        assert_eq!(texts(&[10_000_000_000_000, 310_000]), ["10,000.00 s", "<0.01 s"]);
        assert_eq!(texts(&[999_999, 50_000]), ["1,000.00 µs", "50.00 µs"]);
    }

    #[test]
    fn parts_add_up_as_printed() {
        let parts = [3_334_900, 3_334_900, 3_334_900, 1_000];
        let texts = column(&parts).adding_up(&parts);
        assert_eq!(texts, ["3.34 ms", "3.34 ms", "3.33 ms", "<0.01 ms"]);
        assert_eq!(column(&parts).text(parts.iter().sum()), "10.01 ms");
        assert_eq!(column(&[]).adding_up(&[]), Vec::<String>::new());
    }

    proptest::proptest! {
        #[test]
        fn any_parts_add_up_as_printed(parts in proptest::collection::vec(0u64..1 << 40, 1..9)) {
            let column = column(&parts);
            let number = |text: &String| -> u64 {
                let digits = text.split(' ').next().unwrap_or_default().replace([',', '.'], "");
                if digits.starts_with('<') { 0 } else { digits.parse().unwrap() }
            };
            let sum: u64 = column.adding_up(&parts).iter().map(number).sum();
            proptest::prop_assert_eq!(sum, number(&column.text(parts.iter().sum())));
        }
    }

    #[test]
    fn small_shares_are_never_zero() {
        assert_eq!(percent(0, 10), "0 %");
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(1, 10_000), "<0.1 %");
        assert_eq!(percent(10, 10), "100.0 %");
        assert_eq!(percent(5, 0), "0 %");
        assert_eq!(percent(u64::MAX, u64::MAX), "100.0 %");
    }

    #[test]
    fn counts_have_commas() {
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "stall", "stalls"), "1 stall");
        assert_eq!(counted(0, "stall", "stalls"), "0 stalls");
    }
}
