// SPDX-License-Identifier: Apache-2.0
//! The code that a recording's address filters leave out of its trace.

use std::collections::HashMap;
use std::ops::Range;

use wallprof_model::ModuleId;

use super::spaces::Origin;
use crate::format::filters::Filter;

/// The ranges of one file, or of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges {
    traced: Vec<Range<u64>>,
    stopped: Vec<Range<u64>>,
}

impl Ranges {
    fn add(&mut self, filter: &Filter) {
        let ranges = if filter.is_traced { &mut self.traced } else { &mut self.stopped };
        ranges.push(filter.range.clone());
    }
}

/// Filters whose files are modules of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filters {
    of_modules: HashMap<ModuleId, Ranges>,
    of_kernel: Ranges,
    /// Only ranges are traced. Otherwise all code is traced, up to the ranges that stop the trace.
    limits: bool,
    stops: bool,
}

impl Filters {
    /// `None`: no module has the path of a filter's file.
    pub(crate) fn resolved(filters: &[Filter], modules: &HashMap<ModuleId, Vec<u8>>) -> Option<Filters> {
        let mut resolved = Filters::default();
        for filter in filters {
            resolved.limits |= filter.is_traced;
            resolved.stops |= !filter.is_traced;
            let Some(file) = &filter.file else {
                resolved.of_kernel.add(filter);
                continue;
            };
            let found = modules_of_file(file, modules);
            if found.is_empty() {
                return None;
            }
            for module in found {
                resolved.of_modules.entry(module).or_default().add(filter);
            }
        }
        Some(resolved)
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.limits && !self.stops
    }

    pub(crate) fn leave_out_kernel(&self, address: u64) -> bool {
        self.leave_out(Some(&self.of_kernel), address)
    }

    /// Code at `offset` of the mapped file. `None`: no mapping is known, so the code is in no filter's file.
    pub(crate) fn leave_out_user(&self, mapped: Option<(Origin, u64)>) -> bool {
        match mapped {
            Some((Origin::Module(module), offset)) => self.leave_out(self.of_modules.get(&module), offset),
            Some((Origin::Dump(_), _)) | None => self.leave_out(None, 0),
        }
    }

    fn leave_out(&self, ranges: Option<&Ranges>, place: u64) -> bool {
        let hits = |ranges: &[Range<u64>]| ranges.iter().any(|range| range.contains(&place));
        let is_traced = !self.limits || ranges.is_some_and(|ranges| hits(&ranges.traced));
        !is_traced || ranges.is_some_and(|ranges| hits(&ranges.stopped))
    }
}

/// The modules at the path `file`. If there is none, those with its file name, because a directory may have
/// two names (`/lib` and `/usr/lib`).
fn modules_of_file(file: &[u8], modules: &HashMap<ModuleId, Vec<u8>>) -> Vec<ModuleId> {
    let name = |path: &[u8]| path.rsplit(|&byte| byte == b'/').next().unwrap_or_default().to_vec();
    let with = |is_it: &dyn Fn(&[u8]) -> bool| -> Vec<ModuleId> {
        modules.iter().filter(|(_, path)| is_it(path)).map(|(&module, _)| module).collect()
    };
    let found = with(&|path| path == file);
    if found.is_empty() { with(&|path| name(path) == name(file)) } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::filters::parse;

    fn modules() -> HashMap<ModuleId, Vec<u8>> {
        let paths = ["/bin/prog", "/usr/lib/x.so", "/bin/prog"];
        (0..).map(ModuleId).zip(paths.map(|path| path.as_bytes().to_vec())).collect()
    }

    fn resolved(text: &str) -> Option<Filters> {
        Filters::resolved(&parse(text.as_bytes()).expect("filters"), &modules())
    }

    /// The offsets of the module that are traced.
    fn traced(filters: &Filters, module: u32, offsets: Range<u64>) -> Vec<u64> {
        let origin = Origin::Module(ModuleId(module));
        offsets.filter(|&offset| !filters.leave_out_user(Some((origin, offset)))).collect()
    }

    #[test]
    fn only_ranges_are_traced() {
        let filters = resolved("filter 2/3@/bin/prog,filter 8/1@/bin/prog").expect("a module");
        assert_eq!(traced(&filters, 0, 0..10), [2, 3, 4, 8]);
        assert_eq!(traced(&filters, 2, 0..10), [2, 3, 4, 8], "another mapping of the file");
        assert!(traced(&filters, 1, 0..10).is_empty());
        assert!(filters.leave_out_user(None) && filters.leave_out_user(Some((Origin::Dump(0), 3))));
        assert!(filters.leave_out_kernel(2), "user code only");
    }

    #[test]
    fn a_range_that_stops_the_trace_is_left_out() {
        let filters = resolved("tracestop 2/3@/bin/prog").expect("a module");
        assert_eq!(traced(&filters, 0, 0..6), [0, 1, 5]);
        assert!(!filters.leave_out_user(None) && !filters.leave_out_kernel(2) && !filters.is_empty());
        let both = resolved("filter 0/4@/bin/prog tracestop 2/3@/bin/prog").expect("a module");
        assert_eq!(traced(&both, 0, 0..6), [0, 1]);
    }

    #[test]
    fn addresses_without_a_file_are_kernel_addresses() {
        let kernel = 0xffff_ffff_8100_0000;
        let filters = resolved("filter 0xffffffff81000000/2 filter 4/1@/bin/prog").expect("a module");
        let found: Vec<bool> = (0..3).map(|at| filters.leave_out_kernel(kernel + at)).collect();
        assert_eq!(found, [false, false, true]);
        assert_eq!(traced(&filters, 0, 0..6), [4]);
    }

    #[test]
    fn a_file_may_have_another_path() {
        let filters = resolved("filter 2/3@/lib/x.so").expect("by its name");
        assert_eq!(traced(&filters, 1, 0..9), [2, 3, 4]);
        assert_eq!(resolved("filter 2/3@/lib/y.so"), None);
        assert_eq!(resolved("").map(|filters| filters.is_empty()), Some(true));
    }
}
