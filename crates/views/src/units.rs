//! Numbers as people read them: three significant digits with a unit, shares, counts.

use wallprof_analysis::text_from_ns;

use crate::style::Style;

/// A duration: see [`text_from_ns`].
pub(crate) fn time(ns: u64, style: &Style) -> String {
    text_from_ns(ns, style.pick("µs", "us"))
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
