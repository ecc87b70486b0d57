//! Files as memory: what is read of them is fetched page by page, and nothing is copied.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// A file mapped for reading. Bytes that its owner changes meanwhile may be seen old or new; a file that is cut short
/// meanwhile raises SIGBUS, as it does for the processes that run it.
pub struct FileImage {
    bytes: NonNull<u8>,
    len: usize,
}

impl FileImage {
    /// Fails for empty files, too.
    pub fn map(file: &File) -> io::Result<Self> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        // SAFETY: a fresh private mapping, unmapped in Drop; the kernel keeps the file for it.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let bytes = NonNull::new(address.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(FileImage { bytes, len })
    }
}

impl Deref for FileImage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping holds `len` readable bytes until Drop.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

impl Drop for FileImage {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, used by nobody else.
        unsafe { libc::munmap(self.bytes.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_its_bytes() {
        let file = File::open("/proc/self/exe").expect("the test itself");
        let image = FileImage::map(&file).expect("a mapping");
        assert_eq!(&image[..4], b"\x7fELF");
        assert_eq!(image.len() as u64, file.metadata().expect("metadata").len());
        let empty = File::open("/proc/self/status").expect("a file of length 0");
        assert!(FileImage::map(&empty).is_err());
    }
}
