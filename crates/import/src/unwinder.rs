// SPDX-License-Identifier: Apache-2.0
//! Stack dumps become user stacks: registers and the copied top of a stack, walked with the unwind tables of
//! the mapped files.

use std::cell::OnceCell;

use wallprof_model::{Frame, FrameKind, ModuleId, StackEnd};
use wallprof_symbols::StoredProcesses;
use wallprof_unwind::{Code, CodeSpace, FileImage, Memory, Registers, Table, is_behind_clone, walk};

use crate::build_budget::BuildBudget;
use crate::format::sample::UserState;
use crate::stacks::MAX_FRAMES;

/// perf's numbers of x86's registers (`arch/x86/include/uapi/asm/perf_regs.h`).
mod register {
    pub const AX: u32 = 0;
    pub const BX: u32 = 1;
    pub const CX: u32 = 2;
    pub const DI: u32 = 5;
    pub const BP: u32 = 6;
    pub const SP: u32 = 7;
    pub const IP: u32 = 8;
    pub const R10: u32 = 18;
}
/// `PERF_SAMPLE_REGS_ABI_64`.
const ABI_64: u64 = 2;

/// The sizes of a call: two bytes, up to a displacement and all prefixes.
const CALL_BYTES: std::ops::RangeInclusive<u64> = 2..=8;

/// In `clone` of glibc: `test %rax,%rax`, a jump for errors, and one for the new thread.
const TEST_BYTES: u64 = 9;

/// The sample of a stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampled {
    pub pid: u32,
    pub tid: u32,
    /// The ip is the instruction that the event counted, and the other registers are those behind it
    /// (`PERF_RECORD_MISC_EXACT_IP`).
    pub is_exact: bool,
}

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
        Sampled { pid, tid, is_exact }: Sampled,
        state: &UserState<'_>,
        frames: &mut Vec<u64>,
    ) -> StackEnd {
        frames.clear();
        let Some(mut registers) = registers(state) else { return StackEnd::Unsupported };
        self.tables.resize_with(processes.modules(), OnceCell::new);
        let space = Space { processes, pid, tables: &self.tables };
        let mut stack = Dump { from: registers.sp, bytes: state.stack };
        // The first thread of a process that was forked has its parent's stack.
        if tid != pid && zero_return(state).is_some_and(|back| space.is_behind_clone(back)) {
            frames.push(registers.ip);
            return StackEnd::Complete;
        }
        if is_exact && has_called(&registers, &mut stack) {
            registers.sp = registers.sp.wrapping_add(8);
        }
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

/// The return address of a system call that has just returned 0: `syscall` leaves it in rcx. The C library tests
/// the result next.
fn zero_return(state: &UserState<'_>) -> Option<u64> {
    let register = |number| state.register(number);
    let (ip, back) = (register(register::IP)?, register(register::CX)?);
    (register(register::AX)? == 0 && ip.wrapping_sub(back) <= TEST_BYTES).then_some(back)
}

/// The instruction at the ip was a call: its return address is on the stack.
fn has_called(registers: &Registers, stack: &mut Dump<'_>) -> bool {
    let pushed = stack.word(registers.sp);
    pushed.is_some_and(|word| CALL_BYTES.contains(&word.wrapping_sub(registers.ip)))
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

    fn is_behind_clone(&self, pc: u64) -> bool {
        let Frame { module: Some(id), address, .. } = self.processes.frame(self.pid, pc) else {
            return false;
        };
        let file = self.processes.module_file(id).and_then(|module| module.file);
        let image = file.as_deref().and_then(|file| FileImage::open(file).ok());
        image.is_some_and(|image| is_behind_clone(&image, &BuildBudget::start(), address))
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
    use wallprof_symbols::{FileSearch, MmapEvent};

    use super::*;

    /// bx, bp, sp, ip and r10.
    const MASK: u64 = 1 << 1 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 18;

    const SAMPLED: Sampled = Sampled { pid: 7, tid: 7, is_exact: false };

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
        let end = Unwinder::default().walk(&processes, SAMPLED, &state, &mut frames);
        assert_eq!((frames, end), (vec![0x55_0000_1000, 0x55_0000_2000], StackEnd::FramePointerEnd));
    }

    #[test]
    fn foreign_registers_are_not_walked() {
        let registers = words(&[0; 5]);
        let processes = StoredProcesses::new(FileSearch::default());
        let mut frames = Vec::new();
        for (abi, mask) in [(1, MASK), (ABI_64, 1 << 7)] {
            let state = UserState { abi, registers: &registers, mask, stack: &[] };
            let end = Unwinder::default().walk(&processes, SAMPLED, &state, &mut frames);
            assert_eq!((end, frames.len()), (StackEnd::Unsupported, 0));
        }
    }

    #[test]
    fn call_has_pushed_its_return_address() {
        let registers = Registers { ip: 0x55_0000_1000, sp: 0x7fff_0000, ..Registers::default() };
        let called =
            |pushed: u64, from: u64| has_called(&registers, &mut Dump { from, bytes: &words(&[pushed]) });
        let [shortest, usual, longest] = [2, 5, 8].map(|len| called(registers.ip + len, registers.sp));
        assert!(shortest && usual && longest);
        assert!(!called(registers.ip, registers.sp) && !called(registers.ip + 9, registers.sp));
        assert!(!called(registers.ip - 5, registers.sp) && !called(registers.ip + 5, registers.sp + 8));
    }

    /// A program of one code segment without unwind entries: file offset 120 is its address 0x78.
    fn program(code: &[u8]) -> tempfile::NamedTempFile {
        let halves = |numbers: &[u16]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let len = 120 + code.len() as u64;
        let parts = [
            b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(),
            halves(&[3, 62, 1, 0]),
            words(&[0, 64, 0]),
            halves(&[0, 0, 64, 56, 1, 64, 0, 0]),
            words(&[1 | 5 << 32, 0, 0, 0, len, len, 0x1000]),
            code.to_vec(),
        ];
        let file = tempfile::NamedTempFile::new().expect("a scratch file");
        std::fs::write(file.path(), parts.concat()).expect("written");
        file
    }

    #[test]
    fn new_thread_has_no_caller_on_its_own_stack() {
        const START: u64 = 0x55_0000_0000;
        const CLONE3: [u8; 8] = [0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05, 0xc3];
        const CLOSE: [u8; 8] = [0xb8, 3, 0, 0, 0, 0x0f, 0x05, 0xc3];
        const NEW: Sampled = Sampled { pid: 7, tid: 8, is_exact: false };
        let back = START + 127;
        let frames = |code: &[u8], sampled: Sampled, ax: u64, behind: u64| {
            let ip = back + behind;
            let file = program(code);
            let search = FileSearch { same_kernel: true, ..FileSearch::default() };
            let mut processes = StoredProcesses::new(search);
            processes.mmap(&MmapEvent {
                pid: 7,
                start: START,
                len: 0x1000,
                file_offset: 0,
                path: file.path().as_os_str(),
                build_id: None,
                inode: None,
                executable: true,
            });
            // ax, bx, cx, bp, sp and ip; at the top of the stack the address of the thread's function.
            let registers = words(&[ax, 0, back, 0x7fff_0000, 0x7fff_0000, ip]);
            let stack = words(&[0x55_0000_2000, 0x55_0000_2000, 0]);
            let mask = 7 | 1 << 6 | 1 << 7 | 1 << 8;
            let state = UserState { abi: ABI_64, registers: &registers, mask, stack: &stack };
            let mut frames = Vec::new();
            let end = Unwinder::default().walk(&processes, sampled, &state, &mut frames);
            (frames.len(), end == StackEnd::Complete)
        };
        assert_eq!([0, 5].map(|behind| frames(&CLONE3, NEW, 0, behind)), [(1, true); 2]);
        assert!(frames(&CLONE3, NEW, 0, 16).0 > 1, "further on in the function");
        // Its creator, the first thread of a new process, and another system call.
        for (code, sampled, ax) in [(&CLONE3, NEW, 8), (&CLONE3, SAMPLED, 0), (&CLOSE, NEW, 0)] {
            assert!(frames(code, sampled, ax, 0).0 > 1, "{code:x?} {sampled:?} {ax}");
        }
    }
}
