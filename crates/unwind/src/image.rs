// SPDX-License-Identifier: Apache-2.0
//! The source of the bytes of an ELF file, and the budget to which reading them is charged.

use std::borrow::Cow;
use std::cell::Cell;

/// The bytes of one ELF file. Other users may write to the file or truncate it between two reads: each read
/// is complete or fails, and bytes that were read do not change afterwards.
pub trait Image {
    /// The size of the file in bytes.
    fn size(&self) -> u64;

    /// The `len` bytes at `offset`. `None` if they are not all there.
    fn bytes(&self, offset: u64, len: u64) -> Option<Cow<'_, [u8]>>;

    /// Fills `buffer` from `offset`. Returns false if the bytes are not all there.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> bool;
}

impl Image for &[u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn bytes(&self, offset: u64, len: u64) -> Option<Cow<'_, [u8]>> {
        slice(self, offset, len).map(Cow::Borrowed)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        match slice(self, offset, buffer.len() as u64) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => return false,
        }
        true
    }
}

fn slice(bytes: &[u8], offset: u64, len: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    bytes.get(start..end)
}

/// Decides whether a build may continue.
pub trait Budget {
    /// Called before the build holds `held` bytes in all, and after every [`STEPS`] steps. False ends the
    /// build.
    fn allows(&self, held: u64) -> bool;
}

/// No limit: for trusted files and tests.
pub struct Unlimited;

impl Budget for Unlimited {
    fn allows(&self, _held: u64) -> bool {
        true
    }
}

/// Steps between two calls of the budget. An entry, a row, a function or 16 bytes of code is a step.
pub const STEPS: u64 = 1 << 14;
/// The budget is called after this many further bytes.
const GRAIN: u64 = 64 << 10;

/// The charges of one build. After the budget has refused once, every charge is refused.
pub(crate) struct Meter<'a> {
    budget: &'a dyn Budget,
    held: Cell<u64>,
    /// The number of bytes to which the budget has agreed.
    agreed: Cell<u64>,
    steps: Cell<u64>,
    stopped: Cell<bool>,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(budget: &'a dyn Budget) -> Self {
        let zero = || Cell::new(0);
        Meter { budget, held: zero(), agreed: zero(), steps: zero(), stopped: Cell::new(false) }
    }

    /// Charges memory that is about to be allocated. False: do not allocate it.
    #[inline]
    #[must_use]
    pub(crate) fn hold(&self, bytes: u64) -> bool {
        let held = self.held.get().saturating_add(bytes);
        if held > self.agreed.get() {
            let wanted = held.saturating_add(GRAIN);
            self.ask(wanted);
            self.agreed.set(wanted);
        }
        if self.stopped.get() {
            return false;
        }
        self.held.set(held);
        true
    }

    /// Releases memory that was charged.
    pub(crate) fn release(&self, bytes: u64) {
        self.held.set(self.held.get().saturating_sub(bytes));
    }

    /// Charges steps. False: stop.
    #[inline]
    #[must_use]
    pub(crate) fn step(&self, steps: u64) -> bool {
        let done = self.steps.get().saturating_add(steps);
        self.steps.set(done % STEPS);
        if done >= STEPS {
            self.ask(self.held.get());
        }
        !self.stopped.get()
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stopped.get()
    }

    fn ask(&self, held: u64) {
        if !self.stopped.get() && !self.budget.allows(held) {
            self.stopped.set(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct AtMost(u64);

    impl Budget for AtMost {
        fn allows(&self, held: u64) -> bool {
            held <= self.0
        }
    }

    #[test]
    fn reads_outside_the_image_fail() {
        let image = &b"abcd"[..];
        assert_eq!(image.bytes(1, 2).as_deref(), Some(&b"bc"[..]));
        for (offset, len) in [(3, 2), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(image.bytes(offset, len), None);
        }
        let mut buffer = [0; 2];
        assert!(!image.read(3, &mut buffer) && image.read(2, &mut buffer));
        assert_eq!(&buffer, b"cd");
    }

    /// An image that knows whether its budget was asked before the program headers are read.
    struct Asked<'b> {
        bytes: Vec<u8>,
        budget: &'b Counting,
    }

    #[derive(Default)]
    struct Counting(Cell<u32>);

    impl Budget for Counting {
        fn allows(&self, _held: u64) -> bool {
            self.0.set(self.0.get() + 1);
            true
        }
    }

    impl Image for Asked<'_> {
        fn size(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn bytes(&self, offset: u64, len: u64) -> Option<Cow<'_, [u8]>> {
            assert!(offset == 0 || self.budget.0.get() > 0, "{len} bytes at {offset} are not charged");
            slice(&self.bytes, offset, len).map(Cow::Borrowed)
        }

        fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
            (&self.bytes[..]).read(offset, buffer)
        }
    }

    #[test]
    fn program_headers_are_charged_before_they_are_read() {
        let budget = Counting::default();
        let bytes =
            crate::fixture::Image::new(64).section(".eh_frame", crate::fixture::EH_FRAME, &[0; 4]).bytes();
        let image = Asked { bytes, budget: &budget };
        assert!(crate::Table::from_image(&image, &budget).is_ok());
    }

    #[test]
    fn refused_build_stays_refused() {
        let budget = AtMost(1 << 20);
        let meter = Meter::new(&budget);
        assert!(meter.hold(900 << 10) && meter.step(10 * STEPS));
        assert!(!meter.hold(900 << 10) && !meter.step(1) && !meter.hold(1) && meter.stopped());
    }

    #[test]
    fn released_memory_can_be_held_again() {
        let budget = AtMost(1 << 20);
        let meter = Meter::new(&budget);
        for _ in 0..100 {
            assert!(meter.hold(900 << 10));
            meter.release(900 << 10);
        }
        assert!(!meter.stopped());
    }
}
