// SPDX-License-Identifier: Apache-2.0
//! Reads the configuration file.

use std::fmt::Display;
use std::io::Read;
use std::path::Path;

use wallprof_watch::Config;

use crate::failure::Failure;
use crate::open;
use crate::rights::as_caller;

/// Limit on the file: a configuration is a page of text.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Reads and parses the file.
pub(super) fn read(path: &Path) -> Result<Config, Failure> {
    let name = path.display();
    let unreadable = |error: &dyn Display| {
        Failure::usage(format!(
            "cannot read the configuration {name}: {error}: give a file that this user may read"
        ))
    };
    // At a SIGHUP the recorder's main loop must not wait for the other end of a FIFO.
    let file = as_caller(|| open::regular_file(path)).map_err(|error| unreadable(&error))?;
    let mut text = String::new();
    file.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text).map_err(|error| unreadable(&error))?;
    if text.len() as u64 > MAX_CONFIG_BYTES {
        return Err(unreadable(&"it is longer than 1 MiB"));
    }
    Config::parse(&text).map_err(|error| Failure::usage(format!("{name}, {error}")))
}
