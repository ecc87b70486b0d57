// SPDX-License-Identifier: Apache-2.0
//! Bars made of characters.

use wallprof_analysis::Class;

use crate::style::{Ink, Style};

/// A bar of `part` in `whole`, at most `columns` long. A part above 0 has at least an eighth of a column.
pub(crate) fn bar(part: u64, whole: u64, columns: usize, style: &Style) -> String {
    if whole == 0 || part == 0 {
        return String::new();
    }
    let steps_a_column = if style.unicode { 8 } else { 1 };
    let all = (columns * steps_a_column) as u128;
    let steps = (u128::from(part) * all / u128::from(whole)).min(all) as usize;
    if !style.unicode {
        return if steps == 0 { ".".into() } else { "#".repeat(steps) };
    }
    let eighths = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    format!("{}{}", "█".repeat(steps.max(1) / 8), eighths[steps.max(1) % 8])
}

/// How a class of states looks in a stacked bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub class: Class,
    pub ns: u64,
}

pub(crate) fn glyph(class: Class, style: &Style) -> &'static str {
    match (class, style.unicode) {
        (Class::Running, true) => "█",
        (Class::Late, true) => "▓",
        (Class::Peer, true) => "░",
        (Class::Voluntary, true) => "·",
        (Class::Running, false) => "#",
        (Class::Late, false) => "!",
        (Class::Peer, false) => "-",
        (Class::Voluntary, false) => ".",
    }
}

/// Segments of `whole` side by side, `columns` long together where they add up to `whole`.
pub(crate) fn stacked(segments: &[Segment], whole: u64, columns: usize, style: &Style) -> String {
    let cells = cells_from_segments(segments, whole, columns);
    let drawn = segments.iter().zip(cells).map(|(segment, cells)| {
        style.paint(Ink::Of(segment.class), &glyph(segment.class, style).repeat(cells))
    });
    drawn.collect()
}

/// Whole cells for each segment: those that it fills; the rest goes to the largest fractions.
fn cells_from_segments(segments: &[Segment], whole: u64, columns: usize) -> Vec<usize> {
    let (whole, all) = (u128::from(whole), columns as u128);
    if whole == 0 {
        return vec![0; segments.len()];
    }
    let scaled: Vec<u128> = segments.iter().map(|segment| u128::from(segment.ns) * all).collect();
    let mut cells: Vec<usize> = scaled.iter().map(|ns| (ns / whole).min(all) as usize).collect();
    let wanted = ((scaled.iter().sum::<u128>() + whole / 2) / whole).min(all) as usize;
    let mut by_fraction: Vec<usize> = (0..segments.len()).collect();
    by_fraction.sort_by_key(|&index| (std::cmp::Reverse(scaled[index] % whole), index));
    let missing = wanted.saturating_sub(cells.iter().sum());
    by_fraction.into_iter().take(missing).for_each(|index| cells[index] += 1);
    let mut free = columns;
    for cell in &mut cells {
        *cell = (*cell).min(free);
        free -= *cell;
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_proportion_and_never_vanish() {
        let style = Style::plain();
        assert_eq!(bar(1, 2, 4, &style), "██");
        assert_eq!(bar(9, 16, 2, &style), "█▏");
        assert_eq!(bar(1, 1_000_000, 4, &style), "▏");
        assert_eq!(bar(0, 5, 4, &style), "");
        assert_eq!(bar(7, 5, 4, &style), "████");
        let ascii = Style { unicode: false, ..style };
        assert_eq!(bar(1, 2, 4, &ascii), "##");
        assert_eq!(bar(1, 1_000, 4, &ascii), ".");
    }

    #[test]
    fn stacked_segments_fill_the_bar() {
        let segments = [(Class::Running, 33), (Class::Late, 33), (Class::Peer, 0), (Class::Voluntary, 34)]
            .map(|(class, ns)| Segment { class, ns });
        assert_eq!(stacked(&segments, 100, 10, &Style::plain()), "███▓▓▓····");
        let tiny = [Segment { class: Class::Late, ns: 1 }, Segment { class: Class::Voluntary, ns: 99 }];
        assert_eq!(stacked(&tiny, 100, 10, &Style::plain()), "··········");
        assert_eq!(stacked(&segments, 0, 10, &Style::plain()), "");
        assert_eq!(stacked(&segments, 50, 4, &Style { unicode: false, ..Style::plain() }), "##!!");
    }
}
