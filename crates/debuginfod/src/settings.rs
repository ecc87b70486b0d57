// SPDX-License-Identifier: Apache-2.0
//! The environment variables of debuginfod clients, as `debuginfod-find(1)` describes them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::limits::Limits;

/// More servers than real configurations have.
const MAX_SERVERS: usize = 16;
/// The path below each server's URL.
const PLACE: &str = "/buildid";

/// Servers, cache and limits. Without a server nothing is requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// URLs up to and with `/buildid`, in the order in which they are asked.
    pub servers: Vec<String>,
    /// A sentence for each server that is left out.
    pub notes: Vec<String>,
    /// `None`: there is no home folder to keep it in.
    pub cache: Option<PathBuf>,
    /// The file with the certificates of authorities, if the user names one.
    pub certificates: Option<PathBuf>,
    pub limits: Limits,
}

impl Settings {
    pub fn from_environment() -> Self {
        Settings::from_lookup(&|name| std::env::var_os(name))
    }

    /// The same from any source of variables.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let path = |name: &str| lookup(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let text = |name: &str| lookup(name).and_then(|value| value.into_string().ok()).unwrap_or_default();
        let mut settings = Settings {
            cache: cache_folder(&path),
            certificates: path("SSL_CERT_FILE"),
            limits: limits(&text),
            ..Settings::default()
        };
        settings.add_servers(&text("DEBUGINFOD_URLS"));
        settings
    }

    fn add_servers(&mut self, urls: &str) {
        let mut needs_signatures = false;
        for word in urls.split_whitespace() {
            if let Some(policy) = word.strip_prefix("ima:") {
                needs_signatures = policy == "enforcing";
                continue;
            }
            match server(word) {
                _ if needs_signatures => self.leave_out(
                    word,
                    "files of this server are to be signed, and signatures are not checked here",
                ),
                Some(_) if self.servers.len() == MAX_SERVERS => {
                    self.leave_out(word, "16 servers are asked at most")
                }
                Some(server) if !self.servers.contains(&server) => self.servers.push(server),
                Some(_) => {}
                None => self.leave_out(word, "use a URL that begins with http:// or https://"),
            }
        }
    }

    fn leave_out(&mut self, url: &str, why: &str) {
        self.notes.push(format!("DEBUGINFOD_URLS: {url} is left out: {why}"));
    }
}

/// `https://host/`, `https://host` and `https://host/buildid` are the same server.
fn server(url: &str) -> Option<String> {
    let lower = url.to_ascii_lowercase();
    let host = ["http://", "https://"].into_iter().find_map(|scheme| lower.strip_prefix(scheme))?;
    let url = url.trim_end_matches('/');
    let url = url.strip_suffix(PLACE).unwrap_or(url);
    host.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[')
        .then(|| format!("{url}{PLACE}"))
}

/// The order of elfutils: the folder that the user names, the old default if it exists, the user's caches.
fn cache_folder(path: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let old = || path("HOME").map(|home| home.join(".debuginfod_client_cache")).filter(|old| old.is_dir());
    let caches = || path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")));
    path("DEBUGINFOD_CACHE_PATH")
        .or_else(old)
        .or_else(|| caches().map(|caches| caches.join("debuginfod_client")))
}

/// A variable that is unset, 0, or no number keeps the default.
fn limits(text: &dyn Fn(&str) -> String) -> Limits {
    let number = |name: &str| text(name).trim().parse::<u64>().ok().filter(|&number| number > 0);
    let seconds = |name: &str| number(name).map(|seconds| Duration::from_secs(seconds.min(86_400)));
    let usual = Limits::default();
    Limits {
        file_bytes: number("DEBUGINFOD_MAXSIZE").unwrap_or(usual.file_bytes),
        silence: seconds("DEBUGINFOD_TIMEOUT").unwrap_or(usual.silence),
        file_time: seconds("DEBUGINFOD_MAXTIME").unwrap_or(usual.file_time),
        ..usual
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Settings {
        Settings::from_lookup(&|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn servers_are_asked_in_their_order_and_once() {
        let urls = " https://a.example  http://127.0.0.1:8002/ https://a.example/buildid/ http://[::1]:80/x ";
        let settings = settings(&[("DEBUGINFOD_URLS", urls)]);
        let expected =
            ["https://a.example/buildid", "http://127.0.0.1:8002/buildid", "http://[::1]:80/x/buildid"];
        assert_eq!(settings.servers, expected);
        assert!(settings.notes.is_empty());
    }

    #[test]
    fn servers_that_are_left_out_are_named() {
        let urls = "ftp://a file:///tmp b.example http:// ima:enforcing https://c ima:ignore https://d";
        let settings = settings(&[("DEBUGINFOD_URLS", urls)]);
        assert_eq!(settings.servers, ["https://d/buildid"]);
        assert_eq!(settings.notes.len(), 5, "{:?}", settings.notes);
        assert!(settings.notes[4].contains("https://c is left out: files of this server are to be signed"));
        let many: String = (0..20).map(|number| format!("http://h{number} ")).collect();
        let settings =
            super::Settings::from_lookup(&|name| (name == "DEBUGINFOD_URLS").then(|| OsString::from(&many)));
        assert_eq!((settings.servers.len(), settings.notes.len()), (MAX_SERVERS, 4));
    }

    #[test]
    fn without_servers_nothing_is_asked() {
        assert!(settings(&[]).servers.is_empty() && settings(&[("DEBUGINFOD_URLS", " ")]).servers.is_empty());
    }

    #[test]
    fn the_cache_is_where_elfutils_has_it() {
        let home = tempfile::tempdir().expect("a scratch folder");
        let home_text = home.path().to_str().expect("text");
        let cache = |variables: &[(&str, &str)]| settings(variables).cache;
        assert_eq!(cache(&[]), None);
        let all = [("DEBUGINFOD_CACHE_PATH", "/c"), ("XDG_CACHE_HOME", "/x"), ("HOME", home_text)];
        assert_eq!(cache(&all), Some("/c".into()));
        assert_eq!(cache(&all[1..]), Some("/x/debuginfod_client".into()));
        assert_eq!(cache(&all[2..]), Some(home.path().join(".cache/debuginfod_client")));
        std::fs::create_dir(home.path().join(".debuginfod_client_cache")).expect("a folder");
        assert_eq!(cache(&all[1..]), Some(home.path().join(".debuginfod_client_cache")));
    }

    #[test]
    fn limits_are_read_and_have_defaults() {
        let set = [("DEBUGINFOD_TIMEOUT", "5"), ("DEBUGINFOD_MAXTIME", "7"), ("DEBUGINFOD_MAXSIZE", "1000")];
        let limits = settings(&set).limits;
        assert_eq!((limits.silence.as_secs(), limits.file_time.as_secs(), limits.file_bytes), (5, 7, 1000));
        let invalid =
            [("DEBUGINFOD_TIMEOUT", "-1"), ("DEBUGINFOD_MAXTIME", "0"), ("DEBUGINFOD_MAXSIZE", "x")];
        assert_eq!(settings(&invalid).limits, Limits::default());
    }
}
