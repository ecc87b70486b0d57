// SPDX-License-Identifier: Apache-2.0
//! Reading another process's memory.

/// The memory of a process.
pub trait Memory {
    /// Fills the buffer from this address on. False: not all of it can be read.
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool;
}

pub(crate) fn word(memory: &dyn Memory, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
}

pub(crate) fn half(memory: &dyn Memory, address: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    memory.read(address, &mut bytes).then(|| u32::from_le_bytes(bytes))
}

/// `None`: more than `most` bytes, or not readable.
pub(crate) fn bytes(memory: &dyn Memory, address: u64, len: u64, most: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).ok().filter(|_| len <= most)?];
    memory.read(address, &mut bytes).then_some(bytes)
}

/// The text up to a NUL, of at most `N` bytes: it may end where memory does.
pub(crate) fn text<const N: usize>(memory: &dyn Memory, address: u64) -> Option<String> {
    const PAGE: u64 = 4096;
    let mut bytes = [0; N];
    let to_page = (PAGE - address % PAGE) as usize;
    let is_read =
        memory.read(address, &mut bytes) || to_page < N && memory.read(address, &mut bytes[..to_page]);
    if !is_read {
        return None;
    }
    let len = bytes.iter().position(|&byte| byte == 0)?;
    String::from_utf8(bytes[..len].to_vec()).ok()
}
