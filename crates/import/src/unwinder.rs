//! Stack dumps become user stacks: registers and the copied top of a stack, walked with the unwind tables of
//! the mapped files.

use std::cell::OnceCell;

use wallprof_model::{Frame, FrameKind, ModuleId, StackEnd};
use wallprof_symbols::StoredProcesses;
use wallprof_unwind::{Code, CodeSpace, FileImage, Memory, Registers, Table, walk};

use crate::build_budget::BuildBudget;
use crate::format::sample::UserState;
use crate::stacks::MAX_FRAMES;

/// perf's numbers of x86's registers (`arch/x86/include/uapi/asm/perf_regs.h`).
mod register {
    pub const BX: u32 = 1;
    pub const DI: u32 = 5;
    pub const BP: u32 = 6;
    pub const SP: u32 = 7;
    pub const IP: u32 = 8;
    pub const R10: u32 = 18;
}
/// `PERF_SAMPLE_REGS_ABI_64`.
const ABI_64: u64 = 2;

/// Tables by module. Each is built when a stack first leads through its file.
#[derive(Default)]
pub(crate) struct Unwinder {
    tables: Vec<OnceCell<Option<Table>>>,
}

impl Unwinder {
    /// Replaces the content of `frames` by the thread's address and its return addresses.
    pub(crate) fn walk(
        &mut self,
        processes: &StoredProcesses,
        pid: u32,
        state: &UserState<'_>,
        frames: &mut Vec<u64>,
    ) -> StackEnd {
        frames.clear();
        let Some(registers) = registers(state) else { return StackEnd::Unsupported };
        self.tables.resize_with(processes.modules(), OnceCell::new);
        let space = Space { processes, pid, tables: &self.tables };
        let mut stack = Dump { from: registers.sp, bytes: state.stack };
        walk(registers, &mut stack, &space, MAX_FRAMES, frames)
    }
}

fn registers(state: &UserState<'_>) -> Option<Registers> {
    let register = |number| state.register(number);
    let (ip, sp) = (register(register::IP)?, register(register::SP)?);
    (state.abi == ABI_64).then_some(Registers {
        ip,
        sp,
        fp: register(register::BP)?,
        bx: register(register::BX),
        r10: register(register::R10),
        link: register(register::DI),
    })
}

/// The copied part of a stack.
struct Dump<'a> {
    from: u64,
    bytes: &'a [u8],
}

impl Memory for Dump<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.from)?).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// The code of one process.
struct Space<'a> {
    processes: &'a StoredProcesses,
    pid: u32,
    tables: &'a [OnceCell<Option<Table>>],
}

impl Space<'_> {
    fn table(&self, id: ModuleId) -> Option<&Table> {
        let load = || {
            let file = self.processes.module_file(id)?.file?;
            Table::from_image(&FileImage::open(&file).ok()?, &BuildBudget::start()).ok()
        };
        self.tables.get(id.0 as usize)?.get_or_init(load).as_ref()
    }
}

impl CodeSpace for Space<'_> {
    fn code_at(&self, pc: u64) -> Code<'_> {
        match self.processes.frame(self.pid, pc) {
            Frame { module: Some(id), address, .. } => match self.table(id) {
                Some(table) => Code::Table { table, address },
                None => Code::NoTable,
            },
            Frame { kind: FrameKind::Jit, .. } => Code::Jit,
            // In no recorded mapping.
            Frame { .. } => Code::Jit,
        }
    }
}

#[cfg(test)]
mod tests {
    use wallprof_intel_pt::generator::record::words;
    use wallprof_symbols::FileSearch;

    use super::*;

    /// bx, bp, sp, ip and r10.
    const MASK: u64 = 1 << 1 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 18;

    #[test]
    fn memory_ends_with_the_copy() {
        let bytes = words(&[1, 2]);
        let mut dump = Dump { from: 0x7000, bytes: &bytes };
        let at = [0x6fff, 0x7000, 0x7001, 0x7008, 0x7009, u64::MAX].map(|address| dump.word(address));
        assert_eq!(at, [None, Some(1), Some(2 << 56), Some(2), None, None]);
    }

    #[test]
    fn unknown_code_is_walked_by_frame_pointer() {
        let registers = words(&[0, 0x7fff_0010, 0x7fff_0000, 0x55_0000_1000, 0]);
        let stack = words(&[0, 0, 0x7fff_0020, 0x55_0000_2000, 0, 0]);
        let state = UserState { abi: ABI_64, registers: &registers, mask: MASK, stack: &stack };
        let processes = StoredProcesses::new(FileSearch::default());
        let mut frames = vec![9];
        let end = Unwinder::default().walk(&processes, 7, &state, &mut frames);
        assert_eq!((frames, end), (vec![0x55_0000_1000, 0x55_0000_2000], StackEnd::FramePointerEnd));
    }

    #[test]
    fn foreign_registers_are_not_walked() {
        let registers = words(&[0; 5]);
        let processes = StoredProcesses::new(FileSearch::default());
        let mut frames = Vec::new();
        for (abi, mask) in [(1, MASK), (ABI_64, 1 << 7)] {
            let state = UserState { abi, registers: &registers, mask, stack: &[] };
            let end = Unwinder::default().walk(&processes, 7, &state, &mut frames);
            assert_eq!((end, frames.len()), (StackEnd::Unsupported, 0));
        }
    }
}
