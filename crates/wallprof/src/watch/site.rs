// SPDX-License-Identifier: Apache-2.0
//! The pages and orders of the watcher's port and socket, and the clients that may use each.

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use wallprof_model::Mark;
use wallprof_probe::clock;
use wallprof_watch::{
    Answer, CONTENT_TYPE, Client, Exposition, Method, Metrics, Page, Request, Response, Site, page,
};

use super::commands::{Order, OrderSender, Reply};
use super::drawings::{Drawing, Subject};
use super::freshness::Freshness;

/// Three bars, as of a ledger.
const ICON: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 16 16\"><path fill=\"#e69f00\" \
                    d=\"M1 2h14v3H1z\"/><path fill=\"#cc79a7\" d=\"M1 6.5h9v3H1z\"/><path fill=\"#0072b2\" \
                    d=\"M1 11h5v3H1z\"/></svg>";

/// Metrics, pages and snapshots for all clients; other orders for clients of the socket.
pub struct WatchSite {
    pages: Arc<Pages>,
    sender: Arc<Mutex<OrderSender>>,
    freshness: Arc<Freshness>,
}

/// The pages, made from flushed data.
struct Pages {
    metrics: Arc<Mutex<Metrics>>,
    exposition: Exposition,
    page: Page,
    flame: Drawing,
    report: Drawing,
    findings: Drawing,
}

impl WatchSite {
    pub fn new(
        metrics: Arc<Mutex<Metrics>>,
        sender: OrderSender,
        freshness: Arc<Freshness>,
        page: Page,
        (recording, meaning): (&Path, &[OsString]),
    ) -> Self {
        let drawing = |subject| Drawing::new(subject, recording, meaning);
        let pages = Pages {
            exposition: Exposition::new(Arc::clone(&metrics)),
            metrics,
            page,
            flame: drawing(Subject::Flame),
            report: drawing(Subject::Page),
            findings: drawing(Subject::Findings),
        };
        WatchSite { pages: Arc::new(pages), sender: Arc::new(Mutex::new(sender)), freshness }
    }

    fn read(&self, path: &str) -> Answer {
        match path {
            "/metrics" => self.fresh(Pages::metrics),
            "/-/healthy" => Answer::Now(Response::line(200, "watching")),
            "/" if self.pages.findings.is_stale() => self.after(Order::Refresh, Pages::overview),
            "/" => self.fresh(Pages::overview),
            // A client that looks at it is likely to read more, and that would wait for the drawing.
            "/flame.svg" => self.after(Order::RefreshAndStayFresh, |pages| pages.flame.get()),
            // Browsers ask for it by themselves.
            "/favicon.ico" => Answer::Now(Response::new("image/svg+xml", ICON.as_bytes())),
            "/report.html" => self.after(Order::RefreshAndStayFresh, |pages| pages.report.get()),
            _ => Answer::Now(Response::line(404, "there is no such page: try /, /report.html or /metrics")),
        }
    }

    /// A page as of the last complete second. If that one is pending, the first request waits for the flush,
    /// on the thread for long pages, whose queue is short. Requests meanwhile get the flushed data.
    fn fresh(&self, make: fn(&Pages) -> Response) -> Answer {
        match self.freshness.claim(clock::mono_now()) {
            true => self.after(Order::Refresh, make),
            false => Answer::Now(make(&self.pages)),
        }
    }

    fn after(&self, order: Order, make: fn(&Pages) -> Response) -> Answer {
        let (sender, pages) = (Arc::clone(&self.sender), Arc::clone(&self.pages));
        Answer::Later(Box::new(move || {
            sender.lock().unwrap_or_else(PoisonError::into_inner).refresh(order);
            make(&pages)
        }))
    }

    /// The mark has the time at which its request arrived.
    fn mark(&self, client: Client, text: &str) -> Answer {
        let text = text.trim();
        if text.is_empty() {
            let why = "a mark needs a text: curl -d 'deployed 1.4' ADDRESS/mark";
            return Answer::Now(Response::line(400, why));
        }
        self.order(
            client,
            Order::Mark(Mark { at: clock::mono_now(), duration_ns: None, text: text.to_owned() }),
        )
    }

    fn order(&self, client: Client, order: Order) -> Answer {
        let sender = Arc::clone(&self.sender);
        let carry_out = Box::new(move || {
            let reply = sender.lock().unwrap_or_else(PoisonError::into_inner).send(order);
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
        let (found, age) = self.findings.get_with_age();
        let text = String::from_utf8_lossy(&found.body);
        let found = if found.status == 200 { Ok(&*text) } else { Err(&*text) };
        let metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        Response::new("text/html; charset=utf-8", page(&self.page, found, age, &metrics).into_bytes())
    }
}

impl Site for WatchSite {
    fn answer(&self, request: &Request) -> Answer {
        if request.foreign {
            return Answer::Now(Response::line(
                403,
                "this request comes from a page of another site, or is for a host name that is not of this machine (--host-names)",
            ));
        }
        match (request.client, request.method, request.path.as_str()) {
            (client, Method::Post, "/snapshot") => self.order(client, Order::Snapshot),
            (Client::Control, Method::Post, "/arm") => self.order(Client::Control, Order::Arm),
            (Client::Control, Method::Post, "/disarm") => self.order(Client::Control, Order::Disarm),
            (Client::Control, Method::Get, "/status") => self.order(Client::Control, Order::Status),
            (client, Method::Post, "/mark") => self.mark(client, &request.body),
            (_, Method::Post, _) | (_, Method::Get | Method::Head, "/snapshot" | "/mark") => Answer::Now(
                Response::line(405, "only /snapshot and /mark take POST, all other pages take GET"),
            ),
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

    fn site_of(sender: OrderSender) -> WatchSite {
        let metrics = Arc::new(Mutex::new(Metrics::new(Severities::default(), 10)));
        WatchSite::new(metrics, sender, Arc::default(), Page::default(), (Path::new("/nonexistent.db"), &[]))
    }

    fn status(request: &Request) -> u16 {
        match site().answer(request) {
            Answer::Now(response) => response.status,
            Answer::Later(make) | Answer::Order(make) => make().status,
        }
    }

    fn request(client: Client, method: Method, path: &str) -> Request {
        Request { client, method, path: path.into(), foreign: false, body: String::new() }
    }

    #[test]
    fn all_clients_may_read() {
        for path in ["/metrics", "/-/healthy", "/favicon.ico", "/"] {
            assert_eq!(status(&request(Client::Network, Method::Get, path)), 200, "{path}");
            assert_eq!(status(&request(Client::Network, Method::Post, path)), 405, "{path}");
        }
        assert_eq!(status(&request(Client::Network, Method::Get, "/../etc/passwd")), 404);
    }

    #[test]
    fn orders_come_over_the_socket_only() {
        for path in ["/arm", "/disarm"] {
            assert_eq!(status(&request(Client::Network, Method::Post, path)), 405, "{path}");
            assert_eq!(status(&request(Client::Control, Method::Post, path)), 500, "{path}: no service");
        }
        assert_eq!(status(&request(Client::Network, Method::Get, "/status")), 404);
        assert_eq!(
            status(&request(Client::Network, Method::Get, "/snapshot")),
            405,
            "a link must not cause one"
        );
    }

    #[test]
    fn mark_has_the_text_of_its_request() {
        let (sender, inbox) = commands().unwrap();
        let site = site_of(sender);
        let mut mark = request(Client::Network, Method::Post, "/mark");
        let Answer::Now(refused) = site.answer(&mark) else { panic!("it has no text") };
        assert_eq!(refused.status, 400);
        assert_eq!(status(&request(Client::Network, Method::Get, "/mark")), 405, "a link must not cause one");
        mark.body = "deployed 1.4\n".into();
        let Answer::Later(send) = site.answer(&mark) else { panic!("the service adds it") };
        let sent = std::thread::spawn(send);
        crate::record::ready(&[inbox.as_fd()], None).unwrap();
        let command = inbox.take().pop().expect("an order");
        assert!(matches!(command.order, Order::Mark(mark) if mark.text == "deployed 1.4"));
        command.reply.send(Reply::Refused("too many".into())).unwrap();
        assert_eq!(sent.join().unwrap().status, 429);
    }

    #[test]
    fn first_reader_of_stale_data_waits_for_a_flush_and_no_other_does() {
        let (sender, inbox) = commands().unwrap();
        let site = site_of(sender);
        let scrape = request(Client::Network, Method::Get, "/metrics");
        assert!(matches!(site.answer(&scrape), Answer::Now(_)), "the service flushes every second");
        site.freshness.set(Some(MonoNs(1)));
        let Answer::Later(first) = site.answer(&scrape) else { panic!("it got stale data") };
        assert!(matches!(site.answer(&scrape), Answer::Now(_)), "one flush serves all");
        let waiting = std::thread::spawn(first);
        crate::record::ready(&[inbox.as_fd()], None).unwrap();
        let command = inbox.take().pop().expect("an order");
        assert_eq!(command.order, Order::Refresh);
        let metrics = &site.pages.metrics;
        metrics.lock().unwrap().take(&Event::Loss { reason: "flushed_now".into(), count: 1 });
        metrics.lock().unwrap().end_seconds(1);
        command.reply.send(Reply::Done(String::new())).unwrap();
        let body = waiting.join().unwrap().body;
        assert!(String::from_utf8_lossy(&body).contains("flushed_now"));
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let foreign = Request { foreign: true, ..request(Client::Network, Method::Post, "/snapshot") };
        assert_eq!(status(&foreign), 403);
    }
}
