// SPDX-License-Identifier: Apache-2.0
//! Generated streams of perf.data, as `perf record -o -` writes them.

use wallprof_intel_pt::generator::record::{attr, pair, record, text, words};

/// `PERF_RECORD_*`, and types of perf's own.
mod kind {
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const SWITCH: u32 = 14;
    pub const HEADER_ATTR: u32 = 64;
    pub const BUILD_ID: u32 = 67;
    pub const FINISHED_ROUND: u32 = 68;
}

const MISC_USER: u16 = 2;
const MISC_SWITCH_OUT: u16 = 1 << 13;
const MISC_SWITCH_OUT_PREEMPT: u16 = 1 << 14;
const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
const MISC_BUILD_ID_SIZE: u16 = 1 << 15;

/// IP, TID, TIME, CALLCHAIN, CPU, PERIOD, REGS_USER, STACK_USER, IDENTIFIER.
const SAMPLE_TYPE: u64 = 1 | 2 | 4 | 0x20 | 0x80 | 0x100 | 0x1000 | 0x2000 | 0x1_0000;
/// bp, sp and ip.
const REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const CONTEXT_SWITCH: u64 = 1 << 26;
const EVENT_ID: u64 = 17;
const CALLCHAIN_USER: u64 = (-512i64) as u64;
pub const PERIOD_NS: u64 = 1_000_000;

/// A stream that is being built.
pub struct Stream {
    pub bytes: Vec<u8>,
    /// The starts of records.
    pub records: Vec<usize>,
}

impl Stream {
    /// A stream with the attributes of `cpu-clock`.
    pub fn new() -> Stream {
        let mut stream = Stream { bytes: b"PERFILE2".to_vec(), records: vec![] };
        stream.bytes.extend(words(&[16]));
        const SOFTWARE: u32 = 1;
        const SIZE: usize = 136;
        let fields = [
            (0, pair(SOFTWARE, SIZE as u32)),
            (16, PERIOD_NS),
            (24, SAMPLE_TYPE),
            (40, SAMPLE_ID_ALL | CONTEXT_SWITCH),
            (80, REGISTERS),
            (88, 64),
        ];
        let mut event = attr(SIZE, &fields);
        event.extend(words(&[EVENT_ID]));
        stream.record(kind::HEADER_ATTR, 0, &event);
        stream
    }

    fn record(&mut self, kind: u32, misc: u16, body: &[u8]) {
        self.records.push(self.bytes.len());
        self.bytes.extend(record(kind, misc, body));
    }

    /// Adds a record other than a sample. It ends with thread, time and event.
    fn event(&mut self, kind: u32, misc: u16, body: &[u8], [pid, tid]: [u32; 2], time: u64) {
        let id = [words(&[pair(pid, tid), time, 0, EVENT_ID])].concat();
        self.record(kind, misc, &[body, &id].concat());
    }

    pub fn comm(&mut self, thread: [u32; 2], name: &str, time: u64) {
        let body = [words(&[pair(thread[0], thread[1])]), text(name.as_bytes())].concat();
        self.event(kind::COMM, MISC_COMM_EXEC, &body, thread, time);
    }

    /// Adds a mapping of 64 KiB of code.
    pub fn map(&mut self, thread: [u32; 2], start: u64, path: &str, time: u64) {
        let device_and_inode = [0u8; 24];
        self.mmap2(thread, start, &device_and_inode, path, MISC_USER, time);
    }

    /// As [`Stream::map`]. The record has the file's build id.
    pub fn map_with_build_id(
        &mut self,
        thread: [u32; 2],
        start: u64,
        build_id: [u8; 20],
        path: &str,
        time: u64,
    ) {
        let file = [&[20, 0, 0, 0][..], &build_id].concat();
        self.mmap2(thread, start, &file, path, MISC_USER | MISC_MMAP_BUILD_ID, time);
    }

    fn mmap2(&mut self, thread: [u32; 2], start: u64, file: &[u8], path: &str, misc: u16, time: u64) {
        let body = [
            words(&[pair(thread[0], thread[1]), start, 0x1_0000, 0]),
            file.to_vec(),
            words(&[5 | 2 << 32]),
            text(path.as_bytes()),
        ];
        self.event(kind::MMAP2, misc, &body.concat(), thread, time);
    }

    /// Adds what `perf inject -b` says of a file.
    pub fn build_id(&mut self, build_id: [u8; 20], path: &str) {
        let body = [&[0xff; 4][..], &build_id, &[20, 0, 0, 0], &text(path.as_bytes())].concat();
        self.record(kind::BUILD_ID, MISC_USER | MISC_BUILD_ID_SIZE, &body);
    }

    pub fn fork(&mut self, parent: [u32; 2], child: [u32; 2], time: u64) {
        self.life(kind::FORK, parent, child, time);
    }

    pub fn exit(&mut self, thread: [u32; 2], time: u64) {
        self.life(kind::EXIT, thread, thread, time);
    }

    fn life(&mut self, kind: u32, parent: [u32; 2], child: [u32; 2], time: u64) {
        let body = words(&[pair(child[0], parent[0]), pair(child[1], parent[1]), time]);
        self.event(kind, 0, &body, child, time);
    }

    pub fn switch_out(&mut self, thread: [u32; 2], preempted: bool, time: u64) {
        let misc = MISC_SWITCH_OUT | if preempted { MISC_SWITCH_OUT_PREEMPT } else { 0 };
        self.event(kind::SWITCH, misc, &[], thread, time);
    }

    pub fn switch_in(&mut self, thread: [u32; 2], time: u64) {
        self.event(kind::SWITCH, 0, &[], thread, time);
    }

    pub fn lost(&mut self, events: u64, time: u64) {
        self.event(kind::LOST, 0, &words(&[EVENT_ID, events]), [0, 0], time);
    }

    /// Adds a sample at `chain`, with a stack of 64 bytes.
    pub fn sample(&mut self, [pid, tid]: [u32; 2], chain: &[u64], time: u64) {
        let mut body = words(&[EVENT_ID, chain[0], pair(pid, tid), time, 0, PERIOD_NS]);
        body.extend(words(&[1 + chain.len() as u64, CALLCHAIN_USER]));
        body.extend(words(chain));
        // The registers of a 64-bit program, its stack, and the size of the copied part.
        body.extend(words(&[2, 0x7ffd_0000_0020, 0x7ffd_0000_0000, chain[0]]));
        body.extend(words(&[64, 0x7ffd_0000_0000, 1, 2, 3, 4, chain[0], 6, 7, 64]));
        self.record(kind::SAMPLE, MISC_USER, &body);
    }

    pub fn finished_round(&mut self) {
        self.record(kind::FINISHED_ROUND, 0, &[]);
    }
}

/// Two threads of one program that take turns on a CPU for 20 ms, with their other records.
pub fn two_threads() -> Stream {
    let (main, other) = ([100, 100], [100, 101]);
    let code = 0x55_0000_0000;
    let mut stream = Stream::new();
    stream.comm(main, "program", 1_000);
    stream.map(main, code, "/nowhere/program", 1_001);
    stream.fork(main, other, 1_002);
    stream.lost(3, 1_003);
    for turn in 0..10 {
        let at = 10_000 + turn * 2 * PERIOD_NS;
        stream.switch_in(main, at);
        stream.sample(main, &[code + 16, code + 32], at + PERIOD_NS / 2);
        stream.switch_out(main, turn % 2 == 0, at + PERIOD_NS);
        stream.switch_in(other, at + PERIOD_NS);
        stream.sample(other, &[code + 64, code + 48, code + 32], at + PERIOD_NS * 3 / 2);
        stream.switch_out(other, false, at + 2 * PERIOD_NS);
        stream.finished_round();
    }
    stream.exit(other, 30_000_000);
    stream
}
