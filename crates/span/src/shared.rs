// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory that a process shares with recorders: `include/wallprof.h`, version 1.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, compiler_fence, fence};

const MAGIC: u64 = 0x736e_6170_736c_6c77;
const VERSION: u32 = 1;
const NAME: &CStr = c"wallprof-spans";
const SLOTS: usize = 16;
const KINDS: usize = 32;
const NAME_BYTES: usize = 48;
const DEPTH: usize = 16;
const RING: usize = 2048;
const BUCKETS: usize = 592;
/// Shorter spans are in the sums alone, ns.
const SHORT: u64 = 1_000;
const PAGE: usize = 4096;
const MOST_CHUNKS: usize = 256;
const TICKS: u64 = 1;

#[repr(C)]
struct Entry {
    sequence: AtomicU64,
    id: AtomicU64,
    outer: AtomicU64,
    end: AtomicU64,
    ns: AtomicU64,
}

#[repr(C)]
struct Sum {
    count: AtomicU64,
    ns: AtomicU64,
}

/// The spans of one thread, which alone writes them. Atomic accesses are those of a shared memory: nothing here
/// is an invariant that another process could break.
#[repr(C)]
struct Slot {
    current: AtomicU64,
    entries: AtomicU64,
    number: AtomicU64,
    depth: AtomicU64,
    too_deep: AtomicU64,
    other_kinds: AtomicU64,
    taken_at: AtomicU64,
    unused: u64,
    ids: [AtomicU64; DEPTH],
    starts: [AtomicU64; DEPTH],
    used: [AtomicPtr<u8>; 64],
    kinds: [AtomicU8; 64],
    names: [[AtomicU8; NAME_BYTES]; KINDS],
    fill: [u8; PAGE - 64 - 16 * DEPTH - 64 * 9 - KINDS * NAME_BYTES],
    ring: [Entry; RING],
    sums: [[Sum; BUCKETS]; KINDS],
}

#[repr(C)]
struct Chunk {
    magic: AtomicU64,
    version: AtomicU32,
    pid: AtomicU32,
    first: AtomicPtr<Chunk>,
    unused: [u64; 5],
    on_until: AtomicU64,
    ns_per_tick: AtomicU64,
    clock: AtomicU64,
    unused_too: [u64; 5],
    next: AtomicPtr<Chunk>,
    refused: AtomicU64,
    tids: [AtomicU32; SLOTS],
    fill: [u8; PAGE - 208],
    slots: [Slot; SLOTS],
}

const _: () = assert!(size_of::<Slot>() == 389_120 && size_of::<Chunk>() == PAGE + SLOTS * 389_120);

/// In a page that is empty in a child after fork: it gets slots of its own.
#[repr(C)]
struct State {
    chunk: AtomicPtr<Chunk>,
}

/// Null before the first span.
static STATE: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());
/// There is no memory for spans: marks are off for ever.
static NEVER: AtomicU8 = AtomicU8::new(0);

thread_local! {
    static SLOT: Cell<Option<NonNull<Slot>>> = const { Cell::new(None) };
}

/// The first chunk of this process; `None` before its first span, also in a new child.
#[inline]
fn first_chunk() -> Option<&'static Chunk> {
    let state = NonNull::new(STATE.load(Acquire))?;
    // SAFETY: the page is never unmapped, and its content is one pointer, which a fork makes null.
    let chunk = NonNull::new(unsafe { state.as_ref() }.chunk.load(Acquire))?;
    // SAFETY: a chunk is never unmapped while its process lives, and every bit pattern is valid for its fields.
    Some(unsafe { chunk.as_ref() })
}

#[inline]
fn own_slot() -> Option<&'static Slot> {
    // SAFETY: as in `first_chunk`.
    SLOT.get().map(|slot| unsafe { slot.as_ref() })
}

#[inline]
pub fn begin(kind: &'static str) {
    let Some(chunk) = first_chunk() else { return begin_first(kind) };
    let off = chunk.on_until.load(Relaxed) == 0;
    match own_slot() {
        None if off => {}
        None => begin_first(kind),
        Some(slot) if off && slot.depth.load(Relaxed) == 0 => {}
        Some(slot) => open(chunk, slot, kind),
    }
}

#[inline]
pub fn end() {
    let Some(slot) = own_slot() else { return };
    let Some(chunk) = first_chunk() else { return SLOT.set(None) };
    if slot.depth.load(Relaxed) > 0 {
        close(chunk, slot);
    }
}

#[cold]
#[inline(never)]
fn begin_first(kind: &'static str) {
    if NEVER.load(Relaxed) != 0 {
        return;
    }
    let Some(chunk) = first_chunk().or_else(start) else { return NEVER.store(1, Relaxed) };
    if chunk.on_until.load(Relaxed) == 0 {
        return;
    }
    if let Some(slot) = take_slot(chunk) {
        SLOT.set(Some(slot.into()));
        open(chunk, slot, kind);
    }
}

/// The number is stored before the clock is read, and removed after: what the kernel sees contains what is
/// measured.
#[inline]
fn open(chunk: &Chunk, slot: &'static Slot, kind: &'static str) {
    let depth = slot.depth.load(Relaxed);
    slot.depth.store(depth + 1, Relaxed);
    let Some((id_at, start_at)) = slot.ids.get(depth as usize).zip(slot.starts.get(depth as usize)) else {
        slot.too_deep.store(slot.too_deep.load(Relaxed) + 1, Relaxed);
        return;
    };
    let number = slot.number.load(Relaxed) + 1;
    slot.number.store(number, Relaxed);
    let id = number << 8 | u64::from(kind_of(slot, kind));
    id_at.store(id, Relaxed);
    slot.current.store(id, Relaxed);
    compiler_fence(std::sync::atomic::Ordering::SeqCst);
    let start = clock(chunk);
    compiler_fence(std::sync::atomic::Ordering::SeqCst);
    start_at.store(start, Relaxed);
    let on_until = chunk.on_until.load(Relaxed);
    // The recorder is gone. A span that is open keeps its stages, so that ends meet their begins.
    if start >= on_until && depth == 0 {
        slot.current.store(0, Relaxed);
        slot.depth.store(0, Relaxed);
        if on_until != 0 {
            let _ = chunk.on_until.compare_exchange(on_until, 0, Relaxed, Relaxed);
        }
    }
}

#[inline]
fn close(chunk: &Chunk, slot: &Slot) {
    let end = clock(chunk);
    compiler_fence(std::sync::atomic::Ordering::SeqCst);
    let depth = (slot.depth.load(Relaxed) - 1) as usize;
    slot.depth.store(depth as u64, Relaxed);
    let Some((id, start)) = slot.ids.get(depth).zip(slot.starts.get(depth)) else { return };
    let (id, start) = (id.load(Relaxed), start.load(Relaxed));
    let outer = depth.checked_sub(1).map_or(0, |outer| slot.ids[outer].load(Relaxed));
    slot.current.store(outer, Relaxed);
    // Clocks of two processors can differ by a little.
    let mut ns = end.saturating_sub(start);
    if chunk.clock.load(Relaxed) == TICKS {
        ns = ((u128::from(ns) * u128::from(chunk.ns_per_tick.load(Relaxed))) >> 32) as u64;
    }
    if ns >= SHORT {
        let entries = slot.entries.load(Relaxed);
        let entry = &slot.ring[entries as usize % RING];
        entry.sequence.store(0, Relaxed);
        fence(Release);
        entry.id.store(id, Relaxed);
        entry.outer.store(outer, Relaxed);
        entry.end.store(end, Relaxed);
        entry.ns.store(ns, Relaxed);
        entry.sequence.store(entries + 1, Release);
        slot.entries.store(entries + 1, Release);
    }
    let sum = &slot.sums[id as usize % KINDS][bucket(ns)];
    sum.ns.store(sum.ns.load(Relaxed).wrapping_add(ns), Relaxed);
    sum.count.store(sum.count.load(Relaxed).wrapping_add(1), Release);
}

#[inline]
fn clock(chunk: &Chunk) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if chunk.clock.load(Relaxed) == TICKS {
        // SAFETY: every x86-64 processor has the instruction.
        return unsafe { core::arch::x86_64::_rdtsc() };
    }
    let _ = chunk;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Log-linear, 16 an octave.
#[inline]
fn bucket(ns: u64) -> usize {
    if ns < 16 {
        return ns as usize;
    }
    let exponent = ns.ilog2() as usize;
    ((exponent - 3) * 16 + (ns >> (exponent - 4) & 15) as usize).min(BUCKETS - 1)
}

/// 0: too many have a name already.
#[inline]
fn kind_of(slot: &Slot, name: &'static str) -> u8 {
    let address = name.as_ptr() as usize;
    let place = (address ^ address >> 6) & 63;
    let kind = slot.kinds[place].load(Relaxed) % KINDS as u8;
    // Literals may overlap: the same address can have names of several lengths.
    if slot.used[place].load(Relaxed).cast_const() == name.as_ptr() && is_named(slot, kind, name) {
        return kind;
    }
    find_kind(slot, name, place)
}

#[inline]
fn is_named(slot: &Slot, kind: u8, name: &str) -> bool {
    let known = &slot.names[usize::from(kind)];
    let name = &name.as_bytes()[..name.len().min(NAME_BYTES - 1)];
    known[name.len()].load(Relaxed) == 0
        && known.iter().zip(name).all(|(known, byte)| known.load(Relaxed) == *byte)
}

#[cold]
#[inline(never)]
fn find_kind(slot: &Slot, name: &'static str, place: usize) -> u8 {
    let shown = if name.is_empty() { "?" } else { name };
    let is_free = |kind: &u8| slot.names[usize::from(*kind)][0].load(Relaxed) == 0;
    let Some(kind) = (1..KINDS as u8).find(|kind| is_free(kind) || is_named(slot, *kind, shown)) else {
        slot.other_kinds.store(slot.other_kinds.load(Relaxed) + 1, Relaxed);
        return 0;
    };
    if is_free(&kind) {
        let bytes = shown.as_bytes().iter().take(NAME_BYTES - 1);
        slot.names[usize::from(kind)].iter().zip(bytes).for_each(|(to, byte)| to.store(*byte, Relaxed));
        fence(Release);
    }
    slot.used[place].store(name.as_ptr().cast_mut(), Relaxed);
    slot.kinds[place].store(kind, Relaxed);
    kind
}

/// A slot for this thread: its own from another library, a free one, one of a thread that is gone.
fn take_slot(first: &'static Chunk) -> Option<&'static Slot> {
    // SAFETY: the call has no arguments.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    let mut last = first;
    let mut chunks = 1;
    loop {
        if let Some(slot) = take_in(last, tid, false) {
            return Some(slot);
        }
        let Some(next) = NonNull::new(last.next.load(Acquire)) else { break };
        // SAFETY: as in `first_chunk`.
        last = unsafe { next.as_ref() };
        chunks += 1;
    }
    let found = take_in(last, tid, true).or_else(|| take_in(first, tid, true));
    if found.is_some() || chunks >= MOST_CHUNKS {
        first.refused.fetch_add(u64::from(found.is_none()), Relaxed);
        return found;
    }
    let Some(more) = new_chunk(Some(first)) else {
        first.refused.fetch_add(1, Relaxed);
        return None;
    };
    let slot = take_in(more, tid, false);
    let new = ptr::from_ref(more).cast_mut();
    while let Err(next) = last.next.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire) {
        // SAFETY: as in `first_chunk`; the exchange failed because it is not null.
        last = unsafe { &*next };
    }
    slot
}

fn take_in(chunk: &'static Chunk, tid: u32, from_dead: bool) -> Option<&'static Slot> {
    for (owner, slot) in chunk.tids.iter().zip(&chunk.slots) {
        let before = owner.load(Acquire);
        let is_free = before == 0 || before == tid || (from_dead && is_dead(before));
        if is_free && owner.compare_exchange(before, tid, AcqRel, Acquire).is_ok() {
            if before != tid {
                slot.current.store(0, Relaxed);
                slot.depth.store(0, Relaxed);
                slot.taken_at.store(slot.number.load(Relaxed), Relaxed);
            }
            return Some(slot);
        }
    }
    None
}

fn is_dead(tid: u32) -> bool {
    // SAFETY: signal 0 sends nothing.
    let answer = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) };
    answer != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Two threads, or two libraries, may do this at the same time. What one of them loses is a mapping.
fn start() -> Option<&'static Chunk> {
    SLOT.set(None);
    let mut state = STATE.load(Acquire);
    if state.is_null() {
        let page =
            map(PAGE, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        // SAFETY: the page was mapped just now. Without the advice a child would have the slots of its parent.
        if unsafe { libc::madvise(page.as_ptr(), PAGE, libc::MADV_WIPEONFORK) } != 0 {
            unmap(page, PAGE);
            return None;
        }
        state = page.as_ptr().cast();
        if let Err(other) = STATE.compare_exchange(ptr::null_mut(), state, AcqRel, Acquire) {
            unmap(page, PAGE);
            state = other;
        }
    }
    let chunk = find_chunk().or_else(|| new_chunk(None))?;
    // SAFETY: as in `first_chunk`.
    unsafe { &*state }.chunk.store(ptr::from_ref(chunk).cast_mut(), Release);
    Some(chunk)
}

/// The first chunk of this process, which another library may have made: its mapping that is writable.
fn find_chunk() -> Option<&'static Chunk> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let ranges = maps.lines().filter(|line| line.contains("/memfd:wallprof-spans")).filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        (rest.starts_with("rw") && end.checked_sub(start)? == size_of::<Chunk>()).then_some(start)
    });
    let pid = std::process::id();
    ranges.into_iter().find_map(|start| {
        // SAFETY: a readable and writable mapping of this size, which code with this layout has made.
        let chunk = unsafe { &*ptr::with_exposed_provenance::<Chunk>(start) };
        let is_ours = chunk.magic.load(Acquire) == MAGIC
            && chunk.version.load(Relaxed) == VERSION
            && chunk.pid.load(Relaxed) == pid;
        // SAFETY: as in `first_chunk`: it is set before the magic number.
        is_ours.then(|| unsafe { &*chunk.first.load(Relaxed) })
    })
}

fn new_chunk(first: Option<&'static Chunk>) -> Option<&'static Chunk> {
    let bytes = size_of::<Chunk>();
    // SAFETY: a name that ends with 0, and flags.
    let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return None;
    }
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: calls on a descriptor that this function owns. A recorder reads no file that can shrink.
    let is_sealed = unsafe {
        libc::ftruncate(fd, bytes as libc::off_t) == 0 && libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0
    };
    let shared = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let memory = is_sealed.then(|| map(bytes, libc::PROT_READ | libc::PROT_WRITE, shared, fd)).flatten();
    if let Some(memory) = memory {
        // SAFETY: the mapping that was just made.
        unsafe {
            libc::madvise(memory.as_ptr(), bytes, libc::MADV_DONTFORK);
            libc::madvise(memory.as_ptr(), bytes, libc::MADV_DONTDUMP);
        }
        // SAFETY: of the size of a chunk, aligned to a page, zero, and never unmapped.
        let chunk: &Chunk = unsafe { memory.cast().as_ref() };
        chunk.version.store(VERSION, Relaxed);
        chunk.pid.store(std::process::id(), Relaxed);
        chunk.first.store(ptr::from_ref(first.unwrap_or(chunk)).cast_mut(), Relaxed);
        chunk.magic.store(MAGIC, Release);
        // The kernel announces executable mappings to recorders.
        if let Some(shown) = map(PAGE, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_SHARED, fd) {
            // SAFETY: the mapping that was just made.
            unsafe { libc::madvise(shown.as_ptr(), PAGE, libc::MADV_DONTFORK) };
        }
    }
    // SAFETY: the descriptor of this function; mappings stay.
    unsafe { libc::close(fd) };
    // SAFETY: as above.
    memory.map(|memory| unsafe { memory.cast().as_ref() })
}

fn map(bytes: usize, rights: i32, flags: i32, fd: i32) -> Option<NonNull<c_void>> {
    // SAFETY: a fresh mapping at a place that the kernel chooses.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, rights, flags, fd, 0) };
    if memory == libc::MAP_FAILED { None } else { NonNull::new(memory) }
}

fn unmap(memory: NonNull<c_void>, bytes: usize) {
    // SAFETY: a mapping that the caller has just made and nobody else has.
    unsafe { libc::munmap(memory.as_ptr(), bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_counted_while_a_recorder_wants_them() {
        begin("order");
        end();
        let chunk = first_chunk().expect("memory for spans");
        assert!(own_slot().is_none(), "nobody records");
        chunk.ns_per_tick.store(1 << 32, Relaxed);
        chunk.on_until.store(u64::MAX, Relaxed);
        for _ in 0..3 {
            begin("order");
            begin("check");
            end();
            end();
        }
        end();
        let slot = own_slot().expect("a slot");
        assert_eq!((slot.depth.load(Relaxed), slot.current.load(Relaxed)), (0, 0));
        assert!(is_named(slot, 1, "order") && is_named(slot, 2, "check") && !is_named(slot, 1, "ord"));
        let count = |kind: usize| slot.sums[kind].iter().map(|sum| sum.count.load(Relaxed)).sum::<u64>();
        assert_eq!([1, 2, 3].map(count), [3, 3, 0]);
        // A span that is open keeps its stages when the recorder goes.
        begin("order");
        chunk.on_until.store(0, Relaxed);
        begin("check");
        end();
        end();
        assert_eq!([1, 2].map(count), [4, 4]);
        begin("order");
        end();
        assert_eq!(count(1), 4, "off");
    }

    #[test]
    fn buckets_are_those_of_histograms() {
        let expected =
            [(0, 0), (15, 15), (16, 16), (31, 31), (32, 32), (1_000, 111), (u64::MAX, BUCKETS - 1)];
        for (ns, at) in expected {
            assert_eq!(bucket(ns), at, "{ns}");
        }
    }
}
