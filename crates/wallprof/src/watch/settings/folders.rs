// SPDX-License-Identifier: Apache-2.0
//! The default paths of a service under systemd, and of a watcher started by hand.

use std::env;
use std::path::{Path, PathBuf};

use super::{RUN_FOLDER, SOCKET_NAME};
use crate::args::DEFAULT_FILE;

/// A folder that systemd gives to a service through the environment; the first of several.
fn service_folder(variable: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os(variable)?).next().filter(|path| path.is_absolute())
}

pub(super) fn default_recording() -> String {
    let folder = service_folder("STATE_DIRECTORY").unwrap_or_default();
    folder.join(DEFAULT_FILE).to_string_lossy().into_owned()
}

pub(super) fn default_socket() -> String {
    let folder = service_folder("RUNTIME_DIRECTORY").unwrap_or_else(|| RUN_FOLDER.into());
    folder.join(SOCKET_NAME).to_string_lossy().into_owned()
}

/// The folder of a file.
pub(super) fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}
