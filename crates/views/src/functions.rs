// SPDX-License-Identifier: Apache-2.0
//! Functions of recordings that hold every call, and the difference of two such recordings, as text.

use std::cmp::Reverse;
use std::io::{self, Write};

use wallprof_analysis::calls::{CallChange, CallComparison, CalledFunction, FunctionCalls};

use crate::escape::escape;
use crate::line::{cut, right};
use crate::style::Style;
use crate::text::{write_note, write_title};
use crate::units::{count, counted, time};

/// The number by which functions are sorted, largest first.
type Order = fn(&FunctionCalls) -> u64;

/// Rows of a table, if not all are asked for.
const ROWS: usize = 10;
const COLUMN: usize = 11;

/// Writes functions by their total time, by their own, and by their worst call. Nothing for recordings
/// without calls.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn functions_text(out: &mut impl Write, functions: &[FunctionCalls], style: &Style) -> io::Result<()> {
    if functions.is_empty() {
        return Ok(());
    }
    let about = counted(functions.len() as u64, "function", "functions");
    let orders: [(&str, Order); 3] = [
        ("Functions by total time", |calls| calls.numbers.total_ns),
        ("Functions by own time", |calls| calls.numbers.self_ns),
        ("Functions by worst call", |calls| calls.numbers.max_ns),
    ];
    for (title, key) in orders {
        let mut sorted: Vec<&FunctionCalls> = functions.iter().filter(|calls| key(calls) > 0).collect();
        sorted.sort_by_key(|calls| Reverse(key(calls)));
        write_title(out, title, &about, style)?;
        row(out, ["total", "own", "calls", "open", "average", "worst"].map(str::to_owned), "", style)?;
        for calls in sorted.iter().take(ROWS) {
            function_row(out, calls, style)?;
        }
    }
    write_note(out, 2, "open: calls whose end was not seen; average and worst are of the others", style)
}

fn function_row(out: &mut impl Write, calls: &FunctionCalls, style: &Style) -> io::Result<()> {
    let numbers = &calls.numbers;
    let average = numbers.average_ns().map_or("-".into(), |ns| time(ns, style));
    let worst = if numbers.calls > 0 { time(numbers.max_ns, style) } else { "-".into() };
    let columns = [
        time(numbers.total_ns, style),
        time(numbers.self_ns, style),
        count(numbers.calls),
        count(numbers.incomplete),
        average,
        worst,
    ];
    row(out, columns, &function_name(&calls.function), style)
}

fn row<const N: usize>(
    out: &mut impl Write,
    columns: [String; N],
    name: &str,
    style: &Style,
) -> io::Result<()> {
    let numbers: String = columns.iter().map(|column| right(column, COLUMN)).collect();
    let name_columns = style.columns().saturating_sub(N * COLUMN + 2).max(20);
    writeln!(out, "{}", format!("{numbers}  {}", cut(name, name_columns, style)).trim_end())
}

/// `read`, `[libc.so.6+0x7f]` or `[0x7f]`.
pub(crate) fn function_name(function: &CalledFunction) -> String {
    let suffix = if function.is_kernel { crate::frame_name::KERNEL_SUFFIX } else { "" };
    if let Some(symbol) = &function.symbol {
        return format!("{}{suffix}", escape(symbol));
    }
    let address = function.address.unwrap_or_default();
    match function.module.as_deref() {
        Some(module) => format!("[{}+{address:#x}]{suffix}", escape(module)),
        None => format!("[{address:#x}]{suffix}"),
    }
}

/// Writes the time of a call in two recordings, in absolute time.
///
/// # Errors
/// The error of `out`; a broken pipe among them.
pub fn calls_diff_text(
    out: &mut impl Write,
    comparison: &CallComparison,
    all: bool,
    style: &Style,
) -> io::Result<()> {
    let rows = if all { usize::MAX } else { 2 * ROWS };
    let about = counted(comparison.changes.len() as u64, "function in both", "functions in both");
    write_title(out, "Time per call, B against A", &about, style)?;
    row(out, ["A", "B", "B - A", "calls A", "calls B"].map(str::to_owned), "", style)?;
    for change in comparison.changes.iter().take(rows) {
        change_row(out, change, style)?;
    }
    for (title, functions) in [("Only in A", &comparison.only_a), ("Only in B", &comparison.only_b)] {
        if functions.is_empty() {
            continue;
        }
        write_title(out, title, &counted(functions.len() as u64, "function", "functions"), style)?;
        row(out, ["total", "own", "calls", "open", "average", "worst"].map(str::to_owned), "", style)?;
        for calls in functions.iter().take(rows) {
            function_row(out, calls, style)?;
        }
    }
    Ok(())
}

fn change_row(out: &mut impl Write, change: &CallChange, style: &Style) -> io::Result<()> {
    let average = |ns: Option<u64>| ns.map_or("-".into(), |ns| time(ns, style));
    let difference = change.per_call_ns().map_or("-".into(), |ns| signed(ns, style));
    let columns = [
        average(change.a.average_ns()),
        average(change.b.average_ns()),
        difference,
        count(change.a.calls),
        count(change.b.calls),
    ];
    row(out, columns, &function_name(&change.function), style)
}

pub(crate) fn signed(ns: i128, style: &Style) -> String {
    let size = time(u64::try_from(ns.unsigned_abs()).unwrap_or(u64::MAX), style);
    match ns {
        0 => size,
        1.. => format!("+{size}"),
        _ => format!("-{size}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallprof_model::CallNumbers;

    fn calls(symbol: Option<&str>, calls: u64, complete_ns: u64) -> FunctionCalls {
        let function = CalledFunction {
            symbol: symbol.map(Into::into),
            module: Some("/bin/a".into()),
            is_kernel: false,
            address: symbol.is_none().then_some(0x7f),
        };
        let (total_ns, max_ns, self_ns) = (complete_ns, complete_ns, complete_ns);
        let numbers = CallNumbers { calls, complete_ns, total_ns, max_ns, self_ns, ..CallNumbers::default() };
        FunctionCalls { function, numbers }
    }

    fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_order_has_its_table_and_lines_fit() {
        let functions = [calls(Some("main\x1b[31m"), 2, 3_000), calls(None, 0, 500)];
        let text = text(|out| functions_text(out, &functions, &Style::plain()));
        for title in ["by total time", "by own time", "by worst call"] {
            assert!(text.contains(title), "{text}");
        }
        assert!(
            text.contains("[/bin/a+0x7f]") && text.contains("1.50 µs") && !text.contains('\x1b'),
            "{text}"
        );
    }

    #[test]
    fn without_calls_there_is_no_text() {
        assert_eq!(text(|out| functions_text(out, &[], &Style::plain())), "");
    }

    #[test]
    fn differences_have_their_sign() {
        let (a, b) = (calls(Some("f"), 10, 1_000), calls(Some("f"), 10, 3_000));
        let changes =
            vec![CallChange { function: a.function.clone(), a: a.numbers.clone(), b: b.numbers.clone() }];
        let comparison = CallComparison { changes, only_a: vec![a], only_b: vec![] };
        let text = text(|out| calls_diff_text(out, &comparison, false, &Style::plain()));
        assert!(
            text.contains("+200 ns") && text.contains("Only in A") && !text.contains("Only in B"),
            "{text}"
        );
        assert_eq!(signed(-5, &Style::plain()), "-5 ns");
    }
}
