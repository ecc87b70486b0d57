// SPDX-License-Identifier: Apache-2.0
//! A FUSE mount with one file, whose reads are answered or not. Protocol: `linux/fuse.h`.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

const NOT_IMPLEMENTED: i32 = -38;
const ROOT: u64 = 1;
const FILE: u64 = 2;

/// The file is `MOUNT/program`. Its attributes claim that only root can write to it.
pub struct FuseMount {
    folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    is_silent: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<u32>>>,
    asked_here: Arc<Mutex<Vec<u32>>>,
    daemon: Option<JoinHandle<()>>,
}

struct Daemon {
    device: File,
    contents: Vec<u8>,
    answers_reads: bool,
    is_silent: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<u32>>>,
    /// By threads of this process, since it is silent.
    asked_here: Arc<Mutex<Vec<u32>>>,
}

impl FuseMount {
    /// `None` where FUSE is not offered.
    pub fn new(contents: Vec<u8>, answers_reads: bool) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let device = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/fuse").ok()?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = CString::new(options).expect("no zeros");
        mount("test", folder.path(), "fuse", MountFlags::NOSUID, options.as_c_str()).ok()?;
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let is_silent = Arc::new(AtomicBool::new(false));
        let silent = Arc::clone(&is_silent);
        let asked_here = Arc::<Mutex<Vec<u32>>>::default();
        let mut daemon = Daemon {
            device,
            contents,
            answers_reads,
            is_silent: silent,
            asked: Arc::clone(&asked),
            asked_here: Arc::clone(&asked_here),
        };
        let stopped = Arc::clone(&stop);
        let daemon = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                daemon.serve_one();
            }
        });
        Some(FuseMount { folder, stop, is_silent, asked, asked_here, daemon: Some(daemon) })
    }

    pub fn file(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// From now on the daemon reads requests and answers none.
    pub fn fall_silent(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
    }

    /// What threads of this process asked the daemon for since it fell silent.
    pub fn asked_by_this_process(&self) -> Vec<u32> {
        self.asked_here.lock().expect("no panic").clone()
    }

    /// Whether the daemon was asked for bytes of the file.
    pub fn was_read(&self) -> bool {
        self.asked.lock().expect("no panic").contains(&READ)
    }

    /// Whether the daemon was asked for the state of the file system, which it never answers.
    pub fn was_asked_for_its_state(&self) -> bool {
        self.asked.lock().expect("no panic").contains(&STATFS)
    }
}

impl Drop for FuseMount {
    /// Closing the device ends what still waits for an answer.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(daemon) = self.daemon.take() {
            daemon.join().expect("the daemon ends");
        }
        unmount(self.folder.path(), UnmountFlags::DETACH).expect("unmounted");
    }
}

impl Daemon {
    fn serve_one(&mut self) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        let _ = poll(&mut [PollFd::new(&self.device, PollFlags::IN)], Some(&timeout));
        let mut request = vec![0; 256 << 10];
        let Ok(len) = self.device.read(&mut request) else { return };
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().expect("8 bytes"));
        let (operation, id, node) = (word(4), long(8), long(16));
        assert!(len >= 40);
        self.asked.lock().expect("no panic").push(operation);
        let is_silent = self.is_silent.load(Ordering::Relaxed);
        // The number of the thread that asks. It waits for the answer.
        if is_silent && Path::new(&format!("/proc/self/task/{}", word(32))).exists() {
            self.asked_here.lock().expect("no panic").push(operation);
        }
        let answer = match operation {
            FORGET | INTERRUPT | BATCH_FORGET => return,
            _ if is_silent => return,
            READ if !self.answers_reads => return,
            STATFS => return,
            INIT => Some(init()),
            LOOKUP => Some(self.entry()),
            GETATTR => Some(self.attributes_answer(node)),
            OPEN => Some(vec![0; 16]),
            READ => Some(self.part(long(48), word(56))),
            _ => None,
        };
        self.answer(id, answer);
    }

    fn answer(&mut self, id: u64, answer: Option<Vec<u8>>) {
        let error = if answer.is_some() { 0 } else { NOT_IMPLEMENTED };
        let body = answer.unwrap_or_default();
        let mut bytes = (16 + body.len() as u32).to_le_bytes().to_vec();
        bytes.extend(error.to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes.extend(body);
        // The write fails when the process that asked was killed.
        let _ = self.device.write(&bytes);
    }

    fn part(&self, offset: u64, len: u32) -> Vec<u8> {
        let from = (offset as usize).min(self.contents.len());
        let to = (from + len as usize).min(self.contents.len());
        self.contents[from..to].to_vec()
    }

    /// `struct fuse_attr`.
    fn attributes(&self, node: u64) -> Vec<u8> {
        let (mode, size) = if node == ROOT { (0o40755, 0) } else { (0o100755, self.contents.len() as u64) };
        let mut bytes = Vec::new();
        for field in [node, size, size / 512, 0, 0, 0] {
            bytes.extend(u64::to_le_bytes(field));
        }
        for field in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
            bytes.extend(u32::to_le_bytes(field));
        }
        bytes
    }

    /// Names are valid for an hour, and attributes not at all.
    fn entry(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in [FILE, 0, 3600, 0, 0] {
            bytes.extend(u64::to_le_bytes(field));
        }
        bytes.extend(self.attributes(FILE));
        bytes
    }

    fn attributes_answer(&self, node: u64) -> Vec<u8> {
        let valid = [[0; 8]; 2].concat();
        [valid, self.attributes(node)].concat()
    }
}

/// `struct fuse_init_out` of version 7.31.
fn init() -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in [7, 31, 128 << 10, 0, 0, 128 << 10, 1, 0] {
        bytes.extend(u32::to_le_bytes(field));
    }
    bytes.resize(64, 0);
    bytes
}
