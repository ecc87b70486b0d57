//! What the watcher's port and socket serve: which path gives what, and to whom.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use wallprof_probe::clock;
use wallprof_watch::{
    Answer, CONTENT_TYPE, Client, Exposition, Method, Metrics, Page, Request, Response, Site, page,
};

use super::commands::{Asked, Asker, Reply};
use super::flame::LastMinute;

/// Metrics and pages for everyone who reaches the port; orders for those whom the socket lets in, and a snapshot for both.
pub struct WatchSite {
    metrics: Arc<Mutex<Metrics>>,
    exposition: Exposition,
    asker: Arc<Mutex<Asker>>,
    page: Page,
    flame: Arc<LastMinute>,
}

impl WatchSite {
    pub fn new(metrics: Arc<Mutex<Metrics>>, asker: Asker, page: Page, recording: PathBuf) -> Self {
        WatchSite {
            exposition: Exposition::new(Arc::clone(&metrics)),
            metrics,
            asker: Arc::new(Mutex::new(asker)),
            page,
            flame: Arc::new(LastMinute::of(recording)),
        }
    }

    fn read(&self, path: &str) -> Answer {
        match path {
            "/metrics" => Answer::Now(Response::new(CONTENT_TYPE, self.exposition.text(clock::mono_now()))),
            "/-/healthy" => Answer::Now(Response::line(200, "watching")),
            "/" => {
                let metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
                let html = page(&self.page, &metrics);
                Answer::Now(Response::new("text/html; charset=utf-8", html.into_bytes()))
            }
            "/flame.svg" => {
                let flame = Arc::clone(&self.flame);
                Answer::Later(Box::new(move || flame.picture()))
            }
            _ => Answer::Now(Response::line(404, "nothing is here: try / or /metrics")),
        }
    }

    fn order(&self, asked: Asked) -> Answer {
        let asker = Arc::clone(&self.asker);
        Answer::Later(Box::new(move || {
            let reply = asker.lock().unwrap_or_else(PoisonError::into_inner).ask(asked);
            match reply {
                Reply::Done(text) => Response::line(200, text),
                Reply::Refused(why) => Response::line(429, why),
                Reply::Failed(why) => Response::line(500, why),
            }
        }))
    }
}

impl Site for WatchSite {
    fn answer(&self, request: &Request) -> Answer {
        if request.foreign {
            return Answer::Now(Response::line(403, "this request comes from a page of another site"));
        }
        match (request.client, request.method, request.path.as_str()) {
            (_, Method::Post, "/snapshot") => self.order(Asked::Snapshot),
            (Client::Control, Method::Post, "/arm") => self.order(Asked::Arm),
            (Client::Control, Method::Post, "/disarm") => self.order(Asked::Disarm),
            (Client::Control, Method::Get, "/status") => self.order(Asked::Status),
            (_, Method::Post, _) | (_, Method::Get | Method::Head, "/snapshot") => {
                Answer::Now(Response::line(405, "POST goes to /snapshot, everything else is read"))
            }
            (_, Method::Get | Method::Head, path) => self.read(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use wallprof_watch::Severities;

    use super::super::commands::commands;
    use super::*;

    fn site() -> WatchSite {
        let (asker, inbox) = commands().unwrap();
        drop(inbox);
        let metrics = Arc::new(Mutex::new(Metrics::new(Severities::default(), 10)));
        WatchSite::new(metrics, asker, Page::default(), "/nonexistent.db".into())
    }

    fn status(request: &Request) -> u16 {
        match site().answer(request) {
            Answer::Now(response) => response.status,
            Answer::Later(make) => make().status,
        }
    }

    fn request(client: Client, method: Method, path: &str) -> Request {
        Request { client, method, path: path.into(), foreign: false, close: false }
    }

    #[test]
    fn everyone_may_read() {
        for path in ["/metrics", "/-/healthy", "/"] {
            assert_eq!(status(&request(Client::Network, Method::Get, path)), 200, "{path}");
            assert_eq!(status(&request(Client::Network, Method::Post, path)), 405, "{path}");
        }
        assert_eq!(status(&request(Client::Network, Method::Get, "/../etc/passwd")), 404);
    }

    #[test]
    fn orders_come_by_the_socket_only() {
        for path in ["/arm", "/disarm"] {
            assert_eq!(status(&request(Client::Network, Method::Post, path)), 405, "{path}");
            assert_eq!(status(&request(Client::Control, Method::Post, path)), 500, "{path}: nobody is there");
        }
        assert_eq!(status(&request(Client::Network, Method::Get, "/status")), 404);
        assert_eq!(status(&request(Client::Network, Method::Get, "/snapshot")), 405, "a link must not");
    }

    #[test]
    fn pages_of_other_sites_get_nothing() {
        let foreign = Request { foreign: true, ..request(Client::Network, Method::Post, "/snapshot") };
        assert_eq!(status(&foreign), 403);
    }
}
