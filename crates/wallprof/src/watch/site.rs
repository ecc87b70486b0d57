//! What the watcher's port and socket serve: which path gives what, and to whom.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use wallprof_probe::clock;
use wallprof_watch::{
    Answer, CONTENT_TYPE, Client, Exposition, Method, Metrics, Page, Request, Response, Site, page,
};

use super::commands::{Asked, Asker, Reply};
use super::flame::LastMinute;
use super::freshness::Freshness;

/// Metrics and pages for everyone who reaches the port; orders for those whom the socket lets in, and a snapshot for both.
pub struct WatchSite {
    pages: Arc<Pages>,
    asker: Arc<Mutex<Asker>>,
    freshness: Arc<Freshness>,
}

/// What is read, made of what has been told.
struct Pages {
    metrics: Arc<Mutex<Metrics>>,
    exposition: Exposition,
    page: Page,
    flame: LastMinute,
}

impl WatchSite {
    pub fn new(
        metrics: Arc<Mutex<Metrics>>,
        asker: Asker,
        freshness: Arc<Freshness>,
        page: Page,
        recording: PathBuf,
    ) -> Self {
        let pages = Pages {
            exposition: Exposition::new(Arc::clone(&metrics)),
            metrics,
            page,
            flame: LastMinute::of(recording),
        };
        WatchSite { pages: Arc::new(pages), asker: Arc::new(Mutex::new(asker)), freshness }
    }

    fn read(&self, path: &str) -> Answer {
        match path {
            "/metrics" => self.fresh(Pages::metrics),
            "/-/healthy" => Answer::Now(Response::line(200, "watching")),
            "/" => self.fresh(Pages::overview),
            // Whoever looks at it may look at more, which would have to wait behind the drawing.
            "/flame.svg" => self.after(Asked::Attend, Pages::flame),
            _ => Answer::Now(Response::line(404, "nothing is here: try / or /metrics")),
        }
    }

    /// A page as of the last whole second. In a quiet time the first who asks for one waits until that is told, on the thread
    /// for pages that take long, where few can wait; those who ask meanwhile are given what there is.
    fn fresh(&self, make: fn(&Pages) -> Response) -> Answer {
        match self.freshness.claim(clock::mono_now()) {
            true => self.after(Asked::Refresh, make),
            false => Answer::Now(make(&self.pages)),
        }
    }

    fn after(&self, asked: Asked, make: fn(&Pages) -> Response) -> Answer {
        let (asker, pages) = (Arc::clone(&self.asker), Arc::clone(&self.pages));
        Answer::Later(Box::new(move || {
            asker.lock().unwrap_or_else(PoisonError::into_inner).refresh(asked);
            make(&pages)
        }))
    }

    fn order(&self, client: Client, asked: Asked) -> Answer {
        let asker = Arc::clone(&self.asker);
        let carry_out = Box::new(move || {
            let reply = asker.lock().unwrap_or_else(PoisonError::into_inner).ask(asked);
            match reply {
                Reply::Done(text) => Response::line(200, text),
                Reply::Refused(why) => Response::line(429, why),
                Reply::Failed(why) => Response::line(500, why),
            }
        });
        match client {
            Client::Control => Answer::Order(carry_out),
            Client::Network => Answer::Later(carry_out),
        }
    }
}

impl Pages {
    fn metrics(&self) -> Response {
        Response::new(CONTENT_TYPE, self.exposition.text(clock::mono_now()))
    }

    fn overview(&self) -> Response {
        let metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        Response::new("text/html; charset=utf-8", page(&self.page, &metrics).into_bytes())
    }

    fn flame(&self) -> Response {
        self.flame.picture()
    }
}

impl Site for WatchSite {
    fn answer(&self, request: &Request) -> Answer {
        if request.foreign {
            return Answer::Now(Response::line(
                403,
                "this request comes from a page of another site, or asks for a host that is not this one (--host-names)",
            ));
        }
        match (request.client, request.method, request.path.as_str()) {
            (client, Method::Post, "/snapshot") => self.order(client, Asked::Snapshot),
            (Client::Control, Method::Post, "/arm") => self.order(Client::Control, Asked::Arm),
            (Client::Control, Method::Post, "/disarm") => self.order(Client::Control, Asked::Disarm),
            (Client::Control, Method::Get, "/status") => self.order(Client::Control, Asked::Status),
            (_, Method::Post, _) | (_, Method::Get | Method::Head, "/snapshot") => {
                Answer::Now(Response::line(405, "POST goes to /snapshot, everything else is read"))
            }
            (_, Method::Get | Method::Head, path) => self.read(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use wallprof_model::{Event, MonoNs};
    use wallprof_watch::Severities;

    use super::super::commands::commands;
    use super::*;

    fn site() -> WatchSite {
        site_of(commands().unwrap().0)
    }

    fn site_of(asker: Asker) -> WatchSite {
        let metrics = Arc::new(Mutex::new(Metrics::new(Severities::default(), 10)));
        WatchSite::new(metrics, asker, Arc::default(), Page::default(), "/nonexistent.db".into())
    }

    fn status(request: &Request) -> u16 {
        match site().answer(request) {
            Answer::Now(response) => response.status,
            Answer::Later(make) | Answer::Order(make) => make().status,
        }
    }

    fn request(client: Client, method: Method, path: &str) -> Request {
        Request { client, method, path: path.into(), foreign: false }
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
    fn the_first_who_reads_what_is_stale_has_it_told_and_nobody_else_waits() {
        let (asker, inbox) = commands().unwrap();
        let site = site_of(asker);
        let scrape = request(Client::Network, Method::Get, "/metrics");
        assert!(matches!(site.answer(&scrape), Answer::Now(_)), "the service tells every second");
        site.freshness.set(Some(MonoNs(1)));
        let Answer::Later(first) = site.answer(&scrape) else { panic!("it is given what is stale") };
        assert!(matches!(site.answer(&scrape), Answer::Now(_)), "one asks for all");
        let asking = std::thread::spawn(first);
        crate::record::ready(&[inbox.as_fd()], None).unwrap();
        let command = inbox.take().pop().expect("a question");
        assert_eq!(command.asked, Asked::Refresh);
        let metrics = &site.pages.metrics;
        metrics.lock().unwrap().take(&Event::Loss { reason: "told_now".into(), count: 1 });
        metrics.lock().unwrap().end_seconds(1);
        command.reply.send(Reply::Done(String::new())).unwrap();
        let body = asking.join().unwrap().body;
        assert!(String::from_utf8_lossy(&body).contains("told_now"));
    }

    #[test]
    fn pages_of_other_sites_get_nothing() {
        let foreign = Request { foreign: true, ..request(Client::Network, Method::Post, "/snapshot") };
        assert_eq!(status(&foreign), 403);
    }
}
