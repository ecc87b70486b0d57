// SPDX-License-Identifier: Apache-2.0
//! `wallprof ctl`: sends an order to a watcher over its socket.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use wallprof_watch::ask;

use super::settings::{RUN_FOLDER, SOCKET_NAME};
use crate::args::{CtlArgs, Order};
use crate::failure::{Exit, Failure, printable};
use crate::output::to_stdout;

/// Runs the command.
pub fn run(args: &CtlArgs) -> Result<ExitCode, Failure> {
    let socket = args.socket.clone().unwrap_or_else(usual_socket);
    let (method, path) = request(args.order);
    let text = match (args.order, &args.text) {
        (Order::Mark, Some(text)) => text.as_str(),
        (_, None) => "",
        (_, Some(text)) => {
            let message = format!("only a mark has a text: what is '{}' for?", printable(text));
            return Err(Failure::new(Exit::Usage, message));
        }
    };
    let answered = ask(&socket, method, path, text, timeout(args.order));
    let (status, answer) = answered.map_err(|error| failure(&socket, &error))?;
    match status {
        // Another program may serve the socket: its text must not control the terminal.
        200 => to_stdout(|out| answer.lines().try_for_each(|line| Ok(writeln!(out, "{}", printable(line))?)))
            .map(|()| ExitCode::SUCCESS),
        _ => Err(Failure::failed(answer.trim_end())),
    }
}

fn request(order: Order) -> (&'static str, &'static str) {
    match order {
        Order::Arm => ("POST", "/arm"),
        Order::Disarm => ("POST", "/disarm"),
        Order::Status => ("GET", "/status"),
        Order::Snapshot => ("POST", "/snapshot"),
        Order::Mark => ("POST", "/mark"),
    }
}

/// A watcher acknowledges an order at once. On a busy machine it flushes for seconds before it pauses; a
/// snapshot copies a file.
fn timeout(order: Order) -> Duration {
    match order {
        Order::Arm | Order::Disarm | Order::Status | Order::Mark => Duration::from_secs(30),
        Order::Snapshot => Duration::from_secs(90),
    }
}

/// The socket of the service, else that of a watcher started by hand.
fn usual_socket() -> PathBuf {
    let service = Path::new(RUN_FOLDER).join("wallprof").join(SOCKET_NAME);
    if service.exists() { service } else { Path::new(RUN_FOLDER).join(SOCKET_NAME) }
}

fn failure(socket: &Path, error: &io::Error) -> Failure {
    let (exit, advice) = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            (Exit::Failed, "no watcher serves it: start `wallprof watch`, or give its --socket")
        }
        io::ErrorKind::PermissionDenied => {
            (Exit::Unavailable, "run ctl as the user of the watcher, or as root")
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            (Exit::Failed, "the watcher takes too long: try again")
        }
        _ => (Exit::Failed, "the socket may belong to another program"),
    };
    Failure::new(exit, format!("cannot reach a watcher at {}: {error}: {advice}", socket.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_watcher_is_an_error_with_advice() {
        let args = CtlArgs { order: Order::Status, text: None, socket: Some("/nonexistent/socket".into()) };
        let failure = run(&args).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        assert!(failure.message.contains("/nonexistent/socket") && failure.message.contains("--socket"));
    }

    #[test]
    fn only_status_is_a_get() {
        let methods =
            [Order::Arm, Order::Disarm, Order::Status, Order::Snapshot].map(|order| request(order).0);
        assert_eq!(methods, ["POST", "POST", "GET", "POST"]);
    }
}
