//! Where debug files come from that are on no disk: a trait, so that crates that name frames need no network.

use std::fmt;
use std::path::Path;
use std::time::Duration;

/// A source of debug files that are on their way. Nothing here makes a caller wait but
/// [`DebugFileServer::wait`].
pub trait DebugFileServer: fmt::Debug + Send + Sync {
    /// Asks for the debug file of a build id; a second time changes nothing.
    fn want(&self, build_id: &[u8]);

    /// Waits until everything that was asked for has come or will not come, for so long at most; false when
    /// something is open then.
    fn wait(&self, longest: Duration) -> bool;

    /// The folder in which they are when they have come: [`crate::ResolverOptions::download_dirs`].
    fn folder(&self) -> &Path;
}
