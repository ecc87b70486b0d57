// SPDX-License-Identifier: Apache-2.0
//! A statically linked ELF file as code: its executable segment and its functions.

use wallprof_intel_pt::{Code, Function, FunctionId, SpaceId};

use super::perf_data::{half, quarter, word};

pub struct Program {
    file: Vec<u8>,
    /// Address, offset, size of executable segments.
    segments: Vec<(u64, usize, usize)>,
    /// Start, end, name, by start.
    functions: Vec<(u64, u64, String)>,
}

impl Program {
    pub fn parse(file: Vec<u8>) -> Program {
        let (headers, count) = (word(&file, 32) as usize, quarter(&file, 56) as usize);
        let segments = (0..count).map(|index| headers + 56 * index);
        let executable = segments.filter(|&at| half(&file, at) == 1 && half(&file, at + 4) & 1 != 0);
        let segments = executable
            .map(|at| (word(&file, at + 16), word(&file, at + 8) as usize, word(&file, at + 32) as usize))
            .collect();
        let functions = functions(&file);
        Program { file, segments, functions }
    }

    pub fn name(&self, id: FunctionId) -> &str {
        id.0.checked_sub(1).map_or("[unknown]", |index| &self.functions[index as usize].2)
    }
}

fn functions(file: &[u8]) -> Vec<(u64, u64, String)> {
    let (sections, count) = (word(file, 40) as usize, quarter(file, 60) as usize);
    let section = |index: usize| sections + 64 * index;
    let symbols = (0..count).map(section).find(|&at| half(file, at + 4) == 2).expect("a symbol table");
    let strings = word(file, section(half(file, symbols + 40) as usize) + 24) as usize;
    let (start, size) = (word(file, symbols + 24) as usize, word(file, symbols + 32) as usize);
    let mut found: Vec<(u64, u64, String)> = (start..start + size)
        .step_by(24)
        .filter(|&at| matches!(file[at + 4] & 15, 2 | 10) && word(file, at + 8) != 0)
        .map(|at| {
            (
                word(file, at + 8),
                word(file, at + 8) + word(file, at + 16),
                name(file, strings, half(file, at)),
            )
        })
        .collect();
    found.sort();
    found.dedup_by_key(|function| function.0);
    found
}

fn name(file: &[u8], strings: usize, offset: u32) -> String {
    let bytes = &file[strings + offset as usize..];
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap()).into_owned()
}

impl Code for Program {
    fn bytes(&self, space: SpaceId, address: u64) -> Option<&[u8]> {
        (space == SpaceId(1)).then_some(())?;
        self.segments.iter().find_map(|&(start, offset, size)| {
            let into = usize::try_from(address.checked_sub(start)?).ok().filter(|&into| into < size)?;
            self.file.get(offset + into..offset + size)
        })
    }

    fn function(&self, _: SpaceId, address: u64) -> Option<Function> {
        let index = self.functions.partition_point(|function| function.0 <= address).checked_sub(1)?;
        let (start, end, _) = self.functions[index];
        (address < end).then_some(Function { id: FunctionId(index as u32 + 1), entry: start })
    }
}
