// SPDX-License-Identifier: Apache-2.0
//! The files of a kubelet that name the containers of its pods: links to their logs.
//!
//! Only names are read, no link is followed.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use wallprof_model::PodContainers;

/// A kubelet runs some hundred containers.
const MAX_FILES: usize = 10_000;

/// The kubelet's links to the logs of its containers.
const CONTAINER_LOGS: &str = "/var/log/containers";

/// The folder of the links, and when it was read.
pub struct PodFiles {
    folder: PathBuf,
    changed: Option<SystemTime>,
}

impl Default for PodFiles {
    fn default() -> Self {
        PodFiles::new(CONTAINER_LOGS)
    }
}

impl PodFiles {
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        PodFiles { folder: folder.into(), changed: None }
    }

    /// The containers, if links came or went since the last call. `None` also where there is no such folder.
    pub fn read_if_changed(&mut self) -> Option<PodContainers> {
        let changed = fs::metadata(&self.folder).and_then(|folder| folder.modified()).ok()?;
        if self.changed == Some(changed) {
            return None;
        }
        let files = fs::read_dir(&self.folder).ok()?.take(MAX_FILES).filter_map(Result::ok);
        let containers =
            PodContainers::from_log_names(files.filter_map(|file| file.file_name().into_string().ok()));
        self.changed = Some(changed);
        Some(containers)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn folder_is_read_when_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("containers");
        let mut files = PodFiles::new(&logs);
        assert_eq!(files.read_if_changed(), None, "there is no folder");
        fs::create_dir(&logs).unwrap();
        assert_eq!(files.read_if_changed(), Some(PodContainers::default()));
        let id = "0123456789abcdef".repeat(4);
        std::os::unix::fs::symlink("/nowhere", logs.join(format!("web_shop_nginx-{id}.log"))).unwrap();
        // File systems have times of a tick of the clock.
        let later = SystemTime::now() + Duration::from_secs(1);
        fs::File::open(&logs).unwrap().set_modified(later).unwrap();
        let found = files.read_if_changed().unwrap();
        assert_eq!(found.get(&id).unwrap().to_string(), "shop/web/nginx");
        assert_eq!(files.read_if_changed(), None);
    }
}
