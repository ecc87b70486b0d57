// SPDX-License-Identifier: Apache-2.0
//! Names near to a misspelt one.

/// Longer inputs are not misspelt names. The limit also bounds the computation.
const LONGEST: usize = 64;

/// The most names that a message suggests.
const SUGGESTIONS: usize = 3;

/// The candidates nearest to `text`, best first: those a third of its letters or fewer away.
pub(super) fn nearest<S: Into<String> + AsRef<str>>(
    text: &str,
    candidates: impl IntoIterator<Item = S>,
) -> Vec<String> {
    if text.chars().count() > LONGEST {
        return Vec::new();
    }
    let allowed = (text.chars().count() / 3).max(1);
    let mut near: Vec<(usize, String)> = candidates
        .into_iter()
        .map(|candidate| (distance(text, candidate.as_ref()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .map(|(distance, candidate)| (distance, candidate.into()))
        .collect();
    near.sort();
    near.dedup();
    near.into_iter().take(SUGGESTIONS).map(|(_, name)| name).collect()
}

/// Letters to insert, delete, replace or swap with their neighbour (optimal string alignment), case ignored.
fn distance(one: &str, other: &str) -> usize {
    let letters =
        |text: &str| text.chars().take(LONGEST + 1).map(|c| c.to_ascii_lowercase()).collect::<Vec<_>>();
    let (one, other) = (letters(one), letters(other));
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.iter().enumerate() {
        let mut line = vec![row + 1];
        for (column, against) in other.iter().enumerate() {
            let replaced = last[column] + usize::from(letter != against);
            let mut best = replaced.min(last[column + 1] + 1).min(line[column] + 1);
            if row > 0 && column > 0 && *letter == other[column - 1] && one[row - 1] == *against {
                best = best.min(before[column - 1] + 1);
            }
            line.push(best);
        }
        before = std::mem::replace(&mut last, line);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("cycles", "cycles"), 0);
        assert_eq!(distance("cylces", "cycles"), 1);
        assert_eq!(distance("cycle", "cycles"), 1);
        assert_eq!(distance("Cycles", "cycles"), 0);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
    }

    #[test]
    fn nearest_names_come_first_and_far_ones_are_left_out() {
        let names = ["cache-misses", "cycles", "cpu-cycles", "bus-cycles"];
        assert_eq!(nearest("cylces", names), ["cycles"]);
        assert_eq!(nearest("cpu-cycle", names)[0], "cpu-cycles");
        assert!(nearest("zebra", names).is_empty());
    }

    #[test]
    fn an_endless_name_costs_nothing() {
        assert!(nearest(&"x".repeat(1 << 20), ["cycles"]).is_empty());
        assert!(nearest("cycles", ["c".repeat(1 << 20)]).is_empty());
    }
}
