// SPDX-License-Identifier: Apache-2.0
//! The gathered values of one column. A text that many rows have is kept once.

use std::sync::Arc;

use wallprof_model::FastMap;

use crate::value::{Kind, Value};

/// By row. A value of another kind is NULL.
pub(crate) enum Column {
    /// Integers, times, and the bits of numbers with a fraction.
    Numbers(Vec<Option<i64>>),
    Flags(Vec<Option<bool>>),
    Texts(Texts),
}

/// Texts by row.
#[derive(Default)]
pub(crate) struct Texts {
    /// Of each row, the number of its text. Of NULL it is [`NULL`].
    rows: Vec<u32>,
    numbers: FastMap<Arc<str>, u32>,
    distinct: Vec<Arc<str>>,
}

const NULL: u32 = u32::MAX;

impl Column {
    pub fn new(kind: Kind) -> Column {
        match kind {
            Kind::Integer | Kind::Time | Kind::Real => Column::Numbers(Vec::new()),
            Kind::Flag => Column::Flags(Vec::new()),
            Kind::Text => Column::Texts(Texts::default()),
        }
    }

    pub fn push(&mut self, value: Value<'_>) {
        match self {
            Column::Numbers(numbers) => numbers.push(match value {
                Value::Integer(number) | Value::Time(number) => Some(number),
                Value::Real(number) => Some(number.to_bits().cast_signed()),
                _ => None,
            }),
            Column::Flags(flags) => flags.push(match value {
                Value::Flag(flag) => Some(flag),
                _ => None,
            }),
            Column::Texts(texts) => match value {
                Value::Text(text) => texts.push(&text),
                _ => texts.rows.push(NULL),
            },
        }
    }

    /// A number by which each row is ordered, NULL first. Bits of a number with a fraction are in no order.
    fn ranks(&self) -> Vec<Option<i64>> {
        match self {
            Column::Numbers(numbers) => numbers.clone(),
            Column::Flags(flags) => vec![None; flags.len()],
            Column::Texts(texts) => texts.ranks(),
        }
    }
}

impl Texts {
    fn push(&mut self, text: &str) {
        // Rows that come one after the other often have the same text.
        if let Some(last) = self.rows.last()
            && self.distinct.get(*last as usize).is_some_and(|known| **known == *text)
        {
            return self.rows.push(*last);
        }
        let number = match self.numbers.get(text) {
            Some(known) => *known,
            None => {
                let (text, number): (Arc<str>, _) = (text.into(), self.distinct.len() as u32);
                self.distinct.push(Arc::clone(&text));
                self.numbers.insert(text, number);
                number
            }
        };
        self.rows.push(number);
    }

    /// The different texts, by their numbers.
    pub fn distinct(&self) -> &[Arc<str>] {
        &self.distinct
    }

    /// The number of a row's text.
    pub fn number(&self, row: usize) -> Option<u32> {
        self.rows.get(row).copied().filter(|number| *number != NULL)
    }

    fn ranks(&self) -> Vec<Option<i64>> {
        let mut sorted: Vec<usize> = (0..self.distinct.len()).collect();
        sorted.sort_unstable_by_key(|number| &self.distinct[*number]);
        let mut ranks = vec![0; sorted.len()];
        for (rank, number) in sorted.into_iter().enumerate() {
            ranks[number] = rank as i64;
        }
        self.rows.iter().map(|number| ranks.get(*number as usize).copied()).collect()
    }
}

/// The rows by these columns. Rows with equal keys stay in the order in which they came.
pub(crate) fn order<'c>(rows: usize, keys: impl Iterator<Item = &'c Column>) -> Vec<u32> {
    let keys: Vec<Vec<Option<i64>>> = keys.map(Column::ranks).collect();
    let mut order: Vec<u32> = (0..rows as u32).collect();
    order.sort_by(|one, other| {
        let mut compared = keys.iter().map(|key| key[*one as usize].cmp(&key[*other as usize]));
        compared.find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    });
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(kind: Kind, values: impl IntoIterator<Item = Value<'static>>) -> Column {
        let mut column = Column::new(kind);
        values.into_iter().for_each(|value| column.push(value));
        column
    }

    #[test]
    fn text_of_many_rows_is_kept_once() {
        let values = ["b", "a", "b", "b"].map(Value::from);
        let Column::Texts(texts) = column(Kind::Text, values.into_iter().chain([Value::Null])) else {
            panic!()
        };
        assert_eq!(texts.distinct().iter().map(|text| &**text).collect::<Vec<_>>(), ["b", "a"]);
        let numbers = (0..5).map(|row| texts.number(row)).collect::<Vec<_>>();
        assert_eq!(numbers, [Some(0), Some(1), Some(0), Some(0), None]);
    }

    #[test]
    fn rows_are_ordered_by_each_key_in_turn_and_null_comes_first() {
        let texts =
            column(Kind::Text, ["b".into(), "a".into(), Value::Null, "b".into(), "a".into(), "".into()]);
        let numbers = [3, 7, 1, i64::MIN, 7, 0].map(Value::Integer);
        let numbers = column(Kind::Integer, numbers);
        assert_eq!(order(6, [&texts, &numbers].into_iter()), [2, 5, 1, 4, 3, 0]);
        assert_eq!(order(6, [&numbers].into_iter()), [3, 5, 2, 0, 1, 4]);
        assert_eq!(order(6, std::iter::empty()), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn value_of_another_kind_is_null() {
        let Column::Numbers(numbers) = column(Kind::Integer, ["7".into(), Value::Integer(7)]) else {
            panic!()
        };
        assert_eq!(numbers, [None, Some(7)]);
    }
}
