//! Equal values, kept once.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Interner<T: ?Sized + Eq + Hash>(HashSet<Arc<T>>);

impl<T: ?Sized + Eq + Hash> Default for Interner<T> {
    fn default() -> Self {
        Interner(HashSet::new())
    }
}

impl<T: ?Sized + Eq + Hash> Interner<T> {
    pub fn get<O: Borrow<T> + Into<Arc<T>>>(&mut self, value: O) -> Arc<T> {
        if let Some(known) = self.0.get(value.borrow()) {
            return known.clone();
        }
        let new: Arc<T> = value.into();
        self.0.insert(new.clone());
        new
    }
}
