//! How many call paths are kept, over all threads: programs that call at random have no end of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Some 80 MiB of them.
const MOST_PATHS: usize = 1 << 19;

/// Room that several threads share. When there is none left, a quarter more is for functions by themselves.
#[derive(Clone, Debug)]
pub struct PathRoom(Arc<Left>);

#[derive(Debug)]
struct Left {
    paths: AtomicUsize,
    functions: AtomicUsize,
}

impl Default for PathRoom {
    fn default() -> Self {
        PathRoom::for_paths(MOST_PATHS)
    }
}

impl PathRoom {
    pub fn for_paths(paths: usize) -> Self {
        PathRoom(Arc::new(Left { paths: AtomicUsize::new(paths), functions: AtomicUsize::new(paths / 4) }))
    }

    /// Whether there was room for one path more, which is taken now.
    pub(super) fn take_path(&self) -> bool {
        take(&self.0.paths)
    }

    pub(super) fn take_function(&self) -> bool {
        take(&self.0.functions)
    }
}

fn take(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_shares_it_finds_what_others_left() {
        let one = PathRoom::for_paths(8);
        let other = one.clone();
        let taken = (0..20).filter(|turn| if turn % 2 == 0 { one.take_path() } else { other.take_path() });
        assert_eq!(taken.count(), 8);
        assert_eq!((0..20).filter(|_| other.take_function()).count(), 2);
    }
}
