// SPDX-License-Identifier: Apache-2.0
//! The memory from which the kernel's walker reads tables and lists: chunks that user space writes through
//! mappings.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::time::Instant;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::bpf::constants as c;
use crate::extents::Extents;

const CHUNK_WORDS: usize = c::CHUNK_WORDS as usize;
/// BPF_F_MMAPABLE of linux/bpf.h.
const MMAPABLE: u32 = 1 << 10;

/// Shared memory of plain words. It lives as long as the map that it belongs to.
pub(crate) struct SharedWords {
    _map: MapHandle,
    words: NonNull<u32>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone in this process; the kernel only reads it.
unsafe impl Send for SharedWords {}

impl SharedWords {
    /// Maps an array map with BPF_F_MMAPABLE that holds `len` words.
    pub(crate) fn map(map: MapHandle, len: usize) -> io::Result<Self> {
        // SAFETY: a fresh shared mapping of the map's memory; unmapped in Drop.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len * 4,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let words = NonNull::new(address.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(SharedWords { _map: map, words, len })
    }

    /// Writes `words` from word `at` on. They must be inside the memory.
    pub(crate) fn write(&mut self, at: usize, words: &[u32]) {
        assert!(at <= self.len && words.len() <= self.len - at, "words lie inside their map");
        // SAFETY: inside the mapping, as was just checked. The kernel reads these words only after a later
        // system call refers to them, so that no read races with this copy.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), self.words.as_ptr().add(at), words.len()) };
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, which has no other user.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.len * 4) };
    }
}

/// Chunks, and the free extents in them.
pub(crate) struct Arena {
    /// Number → chunk, as the kernel sees them.
    outer: MapHandle,
    chunks: Vec<SharedWords>,
    extents: Extents,
    max_chunks: usize,
}

impl Arena {
    /// An arena that grows up to `budget` bytes.
    pub(crate) fn new(outer: MapHandle, budget: u64) -> Self {
        let max_chunks = (budget / (CHUNK_WORDS as u64 * 4)).clamp(1, c::MAX_CHUNKS) as usize;
        Arena { outer, chunks: Vec::new(), extents: Extents::default(), max_chunks }
    }

    /// Stores `words` and returns their position; `None` when the arena is full.
    pub(crate) fn store(&mut self, words: &[u32]) -> Option<u32> {
        let len = u32::try_from(words.len()).ok().filter(|&len| len <= Extents::longest())?;
        let now = Instant::now();
        let position = match self.extents.take(len, now) {
            Some(position) => position,
            None => {
                self.grow()?;
                self.extents.take(len, now)?
            }
        };
        let chunk = &mut self.chunks[(position >> c::CHUNK_BITS) as usize];
        chunk.write(position as usize & (CHUNK_WORDS - 1), words);
        Some(position)
    }

    /// Frees stored words, to which no entry of the kernel refers any more.
    pub(crate) fn give_back(&mut self, position: u32, words: usize) {
        self.extents.give_back(position, words as u32, Instant::now());
    }

    /// Bytes stored.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.extents.taken_bytes()
    }

    fn grow(&mut self) -> Option<()> {
        if self.chunks.len() >= self.max_chunks {
            return None;
        }
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as libbpf_rs::libbpf_sys::size_t,
            map_flags: MMAPABLE,
            ..Default::default()
        };
        let bytes = (CHUNK_WORDS * 4) as u32;
        let map = MapHandle::create(MapType::Array, Some("wallprof_chunk"), 4, bytes, 1, &options).ok()?;
        let fd = map.as_fd().as_raw_fd();
        let number = self.chunks.len() as u32;
        self.outer.update(&number.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY).ok()?;
        self.chunks.push(SharedWords::map(map, CHUNK_WORDS).ok()?);
        self.extents.add_chunk();
        Some(())
    }
}
