//! Reading and deleting many entries of a hash map with few system calls.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::libbpf_sys;

use crate::bpf::Plain;

/// Entries asked for at once. A hash bucket must fit whole, which with the least does, too: its maps have as many buckets as
/// entries.
const MOST: usize = 2048;
const LEAST: usize = 64;
/// Room for the values asked for at once: memory that is not new each second.
const BYTES: usize = 128 << 10;

/// Hands every entry of a hash map to `take`; keys for which it returns true are then deleted.
///
/// An entry that is inserted or moved meanwhile may be missed or met twice (kernel/bpf/hashtab.c,
/// `__htab_map_lookup_and_delete_batch`); callers delete only entries that nobody writes any more.
pub fn drain<K: Plain, V: Plain>(
    map: &impl AsFd,
    mut take: impl FnMut(&K, &V) -> bool,
) -> std::io::Result<()> {
    let fd = map.as_fd().as_raw_fd();
    let chunk = (BYTES / size_of::<V>().max(1)).clamp(LEAST, MOST);
    let options = libbpf_sys::bpf_map_batch_opts {
        sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let mut keys: Vec<K> = Vec::with_capacity(chunk);
    let mut values: Vec<V> = Vec::with_capacity(chunk);
    let mut done: Vec<K> = Vec::new();
    // The kernel's position: a bucket number for hash maps.
    let mut position = [0u8; 64];
    let mut begun = false;
    loop {
        let mut count = chunk as u32;
        let from = if begun { position.as_mut_ptr().cast() } else { std::ptr::null_mut() };
        // SAFETY: both buffers have room for `count` entries of the map's key and value size, which K and V are
        // generated from; `position` is larger than any map's batch token.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                fd,
                from,
                position.as_mut_ptr().cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                &raw const options,
            )
        };
        let last = result == -libc::ENOENT;
        if result < 0 && !last {
            return Err(std::io::Error::from_raw_os_error(-result));
        }
        // SAFETY: the kernel has written `count` entries (at most `chunk`) into both buffers.
        unsafe {
            keys.set_len(count as usize);
            values.set_len(count as usize);
        }
        done.extend(keys.iter().zip(&values).filter(|(key, value)| take(key, value)).map(|(key, _)| *key));
        if last {
            break;
        }
        begun = true;
    }
    for keys in done.chunks(MOST) {
        let mut count = keys.len() as u32;
        // SAFETY: `keys` holds `count` keys of the map's key size. A key that is gone ends the batch early, which
        // only leaves entries for the next drain.
        unsafe {
            libbpf_sys::bpf_map_delete_batch(fd, keys.as_ptr().cast(), &raw mut count, &raw const options);
        }
    }
    Ok(())
}
