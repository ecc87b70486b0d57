// SPDX-License-Identifier: Apache-2.0
//! Equal values, kept once and numbered.

use std::borrow::Borrow;
use std::hash::Hash;
use std::sync::Arc;

use wallprof_model::FastMap;

#[derive(Debug)]
pub struct Interner<T: ?Sized> {
    numbers: FastMap<Arc<T>, u32>,
    values: Vec<Arc<T>>,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Interner { numbers: FastMap::default(), values: Vec::new() }
    }
}

impl<T: ?Sized + Eq + Hash> Interner<T> {
    pub fn get<O: Borrow<T> + Into<Arc<T>>>(&mut self, value: O) -> Arc<T> {
        let number = self.number(value);
        self.value(number).clone()
    }

    /// Numbers start at 0, in the order of the first calls.
    pub fn number<O: Borrow<T> + Into<Arc<T>>>(&mut self, value: O) -> u32 {
        if let Some(number) = self.numbers.get(value.borrow()) {
            return *number;
        }
        let value: Arc<T> = value.into();
        let number = self.values.len() as u32;
        self.values.push(value.clone());
        self.numbers.insert(value, number);
        number
    }

    pub fn value(&self, number: u32) -> &Arc<T> {
        &self.values[number as usize]
    }
}
