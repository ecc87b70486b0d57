// SPDX-License-Identifier: Apache-2.0
//! Maps that are asked for each of a million rows.

use std::collections::{HashMap, HashSet};

/// A map with a hash that takes a nanosecond for a number in place of twenty. Its seed is random in each process:
/// a hostile recording does not choose the buckets of its ids.
pub type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// A set with the same hash.
pub type FastSet<T> = HashSet<T, foldhash::fast::RandomState>;
