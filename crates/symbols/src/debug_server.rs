// SPDX-License-Identifier: Apache-2.0
//! A trait for servers of debug files, so that the crates that name frames do not depend on a network
//! library.

use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Downloads debug files in the background. Only [`DebugFileServer::wait`] blocks.
pub trait DebugFileServer: fmt::Debug + Send + Sync {
    /// Requests the debug file of a build id. A second request for the same one has no effect.
    fn want(&self, build_id: &[u8]);

    /// Waits until each request has succeeded or failed, but at most `longest`. False when a request is still
    /// open then.
    fn wait(&self, longest: Duration) -> bool;

    /// The folder of downloaded files, for [`crate::ResolverOptions::download_dirs`].
    fn folder(&self) -> &Path;
}
