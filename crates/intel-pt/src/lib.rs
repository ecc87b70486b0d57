//! Intel Processor Trace: packets → control flow → timed calls and returns → call paths.
//!
//! Pure: trace bytes and code bytes come in as slices, events and numbers go out. Nothing here opens a file, reads a
//! clock or starts a thread; segments of a trace decode independently, on any thread the caller has.

pub mod packet;
pub mod packets;
pub mod stopwatch;
pub mod time_conv;
