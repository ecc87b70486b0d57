// SPDX-License-Identifier: Apache-2.0
//! Weighted stacks, and timelines of stalls, in the formats of other tools.

mod firefox;
#[cfg(test)]
mod fixture;
mod folded;
mod format;
mod per_step;
mod perfetto;
mod pprof;
mod profile;
mod speedscope;
mod stall_names;
mod timeline;

pub use folded::folded;
pub use format::{Export, ExportFormat, Rows};
pub use pprof::pprof;
pub use speedscope::speedscope;
pub use timeline::Timeline;

/// Every format, in the order of the help. The command line, its help and its completions derive from it.
pub static EXPORT_FORMATS: &[ExportFormat] =
    &[folded::FORMAT, speedscope::FORMAT, pprof::FORMAT, perfetto::FORMAT, firefox::FORMAT, format::PARQUET];

/// The format of this name.
pub fn export_format(name: &str) -> Option<&'static ExportFormat> {
    EXPORT_FORMATS.iter().find(|format| format.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_is_found_by_its_name() {
        for format in EXPORT_FORMATS {
            assert!(export_format(format.name).is_some_and(|found| std::ptr::eq(found, format)));
            assert!(!format.about.is_empty() && !format.about.ends_with('.'), "{}", format.name);
        }
        assert!(export_format("svg").is_none());
    }
}
