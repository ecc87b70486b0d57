// SPDX-License-Identifier: Apache-2.0
//! How a file may be read: whether other users can change it, and whether a read of it can block.
//!
//! No call here waits for a file system. `statx(2)` with `AT_STATX_DONT_SYNC` returns attributes that the
//! kernel has cached, and the type of the file system comes from `/proc/self/mountinfo`. `fstatfs(2)` sends
//! a request to a FUSE daemon, so it is only called for devices that are not mounted here: an open file on a
//! FUSE mount that other users can see belongs to a mount of this namespace.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Statx, StatxFlags, fstatfs, statx};
use rustix::process::geteuid;

/// How a file may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileAccess {
    /// Only root and the recorder's own user can write to it, and its file system is local. It may be mapped.
    Protected,
    /// Others can change it at any time. It is read in bounded pieces, and its debug information is parsed by
    /// another process.
    Foreign,
    /// A program of another user, or another machine, serves its contents. A read may block for ever, so that
    /// only a child process reads it.
    Served,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileSystem {
    Local,
    /// The administrator mounted it from another machine: owners and modes are trusted. The other machine can
    /// still truncate its files.
    Network,
    /// Any user may have mounted it. Its daemon reports any owners and modes.
    Fuse,
}

impl FileAccess {
    pub(crate) fn of(file: &File) -> Self {
        match cached_attributes(file) {
            Ok(attributes) => Self::of_attributes(&attributes, file_system(file, &attributes)),
            Err(_) => FileAccess::Foreign,
        }
    }

    fn of_attributes(attributes: &Statx, system: FileSystem) -> Self {
        let own = [0, geteuid().as_raw()];
        let is_own = own.contains(&attributes.stx_uid) && attributes.stx_mode & 0o022 == 0;
        match (system, is_own) {
            (FileSystem::Local, true) => FileAccess::Protected,
            (FileSystem::Local, false) | (FileSystem::Network, true) => FileAccess::Foreign,
            (FileSystem::Network, false) | (FileSystem::Fuse, _) => FileAccess::Served,
        }
    }
}

/// The attributes of an open file, without a request to a FUSE daemon or a server.
pub(crate) fn cached_attributes(file: &File) -> io::Result<Statx> {
    Ok(statx(file, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS)?)
}

fn file_system(file: &File, attributes: &Statx) -> FileSystem {
    let device = format!("{}:{}", attributes.stx_dev_major, attributes.stx_dev_minor);
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    mounted_type(&mounts, &device).map_or_else(|| file_system_from_magic(file), file_system_from_name)
}

/// The type of the file system with this device, from the text of `mountinfo` (proc_pid_mountinfo(5)): the
/// third field is the device, and the type is the field behind `-`.
fn mounted_type<'a>(mounts: &'a [u8], device: &str) -> Option<&'a [u8]> {
    mounts.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let of_device = fields.nth(2) == Some(device.as_bytes());
        of_device.then(|| fields.skip_while(|field| *field != b"-").nth(1))?
    })
}

fn file_system_from_name(name: &[u8]) -> FileSystem {
    match name {
        b"fuse" | b"fuseblk" => FileSystem::Fuse,
        _ if name.starts_with(b"fuse.") => FileSystem::Fuse,
        b"nfs" | b"nfs4" | b"9p" | b"cifs" | b"smb3" | b"virtiofs" | b"ceph" | b"afs" => FileSystem::Network,
        _ => FileSystem::Local,
    }
}

/// The mount point of the file at an absolute path, if that is on a local file system, and the rest of the
/// path. The path has no links and no `..`.
pub(crate) fn local_mount_of(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    local_mount_in(&mounts, path)
}

/// The fifth field of a line is the mount point. Later lines are mounted over earlier ones.
fn local_mount_in(mounts: &[u8], path: &Path) -> Option<(PathBuf, PathBuf)> {
    let places = mounts.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let place = Path::new(OsStr::from_bytes(fields.nth(4)?));
        let name = fields.skip_while(|field| *field != b"-").nth(1)?;
        path.starts_with(place).then_some((place, name))
    });
    let (place, name) = places.max_by_key(|(place, _)| place.as_os_str().len())?;
    let is_local = file_system_from_name(name) == FileSystem::Local;
    let rest = path.strip_prefix(place).ok().filter(|_| is_local)?;
    Some((place.to_owned(), rest.to_owned()))
}

/// Finds the type by the magic numbers of `linux/magic.h`: FUSE; NFS, 9p, SMB.
fn file_system_from_magic(file: &File) -> FileSystem {
    const FUSE: u64 = 0x6573_5546;
    const NETWORK: [u64; 5] = [0x6969, 0x0102_1997, 0x517b, 0xfe53_4d42, 0xff53_4d42];
    match fstatfs(file).map(|system| system.f_type as u64 & 0xffff_ffff) {
        Ok(FUSE) | Err(_) => FileSystem::Fuse,
        Ok(kind) if NETWORK.contains(&kind) => FileSystem::Network,
        Ok(_) => FileSystem::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn with_mode(file: &File, mode: u32) -> FileAccess {
        file.set_permissions(std::fs::Permissions::from_mode(mode)).expect("changed");
        FileAccess::of(file)
    }

    #[test]
    fn file_is_protected_unless_others_may_write_to_it() {
        let file = tempfile::tempfile().expect("a scratch file");
        let access = [0o755, 0o600, 0o775, 0o666].map(|mode| with_mode(&file, mode));
        use FileAccess::{Foreign, Protected};
        assert_eq!(access, [Protected, Protected, Foreign, Foreign]);
        if geteuid().is_root() {
            with_mode(&file, 0o755);
            std::os::unix::fs::fchown(&file, Some(65534), None).expect("changed");
            assert_eq!(FileAccess::of(&file), Foreign, "its owner can change its mode");
        }
    }

    #[test]
    fn owner_and_mode_are_not_trusted_on_fuse() {
        let file = tempfile::tempfile().expect("a scratch file");
        with_mode(&file, 0o600);
        let own = cached_attributes(&file).expect("attributes");
        with_mode(&file, 0o666);
        let others = cached_attributes(&file).expect("attributes");
        let access = |system| [&own, &others].map(|attributes| FileAccess::of_attributes(attributes, system));
        use FileAccess::{Foreign, Protected, Served};
        assert_eq!(access(FileSystem::Local), [Protected, Foreign]);
        assert_eq!(access(FileSystem::Network), [Foreign, Served]);
        assert_eq!(access(FileSystem::Fuse), [Served, Served]);
    }

    #[test]
    fn type_comes_from_the_mount_of_the_device() {
        let mounts = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw\n\
            40 35 0:52 / /home/a/my\\040files rw,nosuid - fuse.sshfs a@host:/ rw,user_id=1000\n\
            41 35 0:53 / /cut";
        let kind = |device| mounted_type(mounts, device).map(file_system_from_name);
        assert_eq!(kind("98:0"), Some(FileSystem::Local));
        assert_eq!(kind("0:52"), Some(FileSystem::Fuse));
        assert_eq!([kind("0:5"), kind("0:53"), kind("")], [None; 3]);
    }

    #[test]
    fn local_mount_of_a_path_is_the_last_longest_one() {
        let mounts = b"1 0 8:0 / / rw - ext4 /dev/sda rw\n\
            2 1 8:1 / /home rw - xfs /dev/sdb rw\n\
            3 2 0:52 / /home/a/mnt rw - fuse.sshfs a@host:/ rw\n\
            4 1 0:53 / /srv rw - ext4 /dev/sdc rw\n\
            5 4 0:54 / /srv rw - nfs4 host:/ rw\n";
        let mount = |path: &str| local_mount_in(mounts, Path::new(path));
        let local = |place: &str, rest: &str| Some((PathBuf::from(place), PathBuf::from(rest)));
        assert_eq!(mount("/usr/bin/x"), local("/", "usr/bin/x"));
        assert_eq!(mount("/home/a/mntx"), local("/home", "a/mntx"));
        assert_eq!([mount("/home/a/mnt/x"), mount("/srv/x")], [None, None]);
    }

    #[test]
    fn device_that_is_not_mounted_is_known_by_its_magic_number() {
        let file = File::from(
            rustix::fs::memfd_create("wallprof-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory"),
        );
        assert_eq!(file_system_from_magic(&file), FileSystem::Local);
        assert_ne!(FileAccess::of(&file), FileAccess::Served);
    }
}
