//! Streams of perf.data become events in the order of time, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wallprof_import::{ImportOptions, RecordingFacts, Sink, import_stream};
use wallprof_model::{Event, MonoNs};

/// Looks at the order alone.
struct Settled(u64);

impl Sink for Settled {
    type Error = std::convert::Infallible;

    fn start(&mut self, facts: &RecordingFacts) -> Result<(), Self::Error> {
        self.0 = facts.start.0;
        Ok(())
    }

    fn take(&mut self, _event: Event) -> Result<(), Self::Error> {
        Ok(())
    }

    fn settled(&mut self, until: MonoNs) -> Result<(), Self::Error> {
        assert!(until.0 >= self.0, "time goes back");
        self.0 = until.0;
        Ok(())
    }

    fn progress(&mut self, _bytes: u64, _of: Option<u64>) {}
}

fuzz_target!(|bytes: &[u8]| {
    // No file of this machine is to be read: what the input names is looked for where nothing is.
    let options = ImportOptions { symfs: Some("/nonexistent".into()), ..ImportOptions::default() };
    let _ = import_stream(bytes, &options, &mut Settled(0));
});
