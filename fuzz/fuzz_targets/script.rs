//! Texts that may be perf script's become events in the order of time, or an error.
#![no_main]

use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use wallprof_import::{RecordingFacts, Sink, import_scripts};
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

// Files are in memory: two of them, cut at a zero byte if there is one.
fuzz_target!(|bytes: &[u8]| {
    let cut = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let paths: Vec<PathBuf> = [&bytes[..cut], bytes.get(cut + 1..).unwrap_or_default()]
        .into_iter()
        .enumerate()
        .filter(|(number, part)| *number == 0 || !part.is_empty())
        .map(|(number, part)| {
            let path = PathBuf::from(format!("/dev/shm/wallprof-fuzz-{}-{number}", std::process::id()));
            std::fs::write(&path, part).expect("a file in memory");
            path
        })
        .collect();
    let _ = import_scripts(&paths, &mut Settled(0));
    for path in paths {
        let _ = std::fs::remove_file(path);
    }
});
