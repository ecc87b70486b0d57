// SPDX-License-Identifier: Apache-2.0
//! Reading and deleting many entries of a hash map with few system calls.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::libbpf_sys;

use crate::bpf::Plain;

/// Entries requested at once. A whole hash bucket must fit. With the smallest number it does: the maps that
/// are read here have as many buckets as entries.
const MOST: usize = 2048;
const LEAST: usize = 64;
/// The size of the buffer for the values that are requested at once, so that it is not allocated from the
/// kernel each second.
const BYTES: usize = 128 << 10;

/// Calls `take` for every entry of a hash map, and then deletes the keys for which it returned true.
///
/// An entry that is inserted or moved meanwhile may be missed or met twice (kernel/bpf/hashtab.c,
/// `__htab_map_lookup_and_delete_batch`). Callers delete only entries that are no longer written.
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
    let mut started = false;
    loop {
        let mut count = chunk as u32;
        let from = if started { position.as_mut_ptr().cast() } else { std::ptr::null_mut() };
        // SAFETY: both buffers have the capacity for `count` entries of the map's key and value size, from
        // which K and V are generated; `position` is larger than any map's batch token.
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
        started = true;
    }
    for keys in done.chunks(MOST) {
        let mut count = keys.len() as u32;
        // SAFETY: `keys` holds `count` keys of the map's key size. A key that is gone ends the batch early,
        // which only leaves entries for the next drain.
        unsafe {
            libbpf_sys::bpf_map_delete_batch(fd, keys.as_ptr().cast(), &raw mut count, &raw const options);
        }
    }
    Ok(())
}
