// SPDX-License-Identifier: Apache-2.0
//! `wallprof watch`: records until it is stopped, in bounded memory, and exports metrics.
//!
//! Reads the options, checks that their targets exist, and binds the port and the socket before it loads the
//! probes.

mod commands;
mod ctl;
mod drawings;
mod freshness;
mod service;
mod settings;
mod signals;
mod site;
mod snapshots;
mod tables;
mod top;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use wallprof_probe::facts::files::HostFiles;
use wallprof_watch::{Listener, Metrics, Notifier, Server};

use crate::args::WatchArgs;
use crate::descriptors;
use crate::failure::{Failure, say};
use crate::record::{Target, check_exists, check_permitted};
use commands::commands;
use service::Service;
use settings::Settings;
use signals::Signals;
use site::WatchSite;

pub use ctl::run as control;
pub use drawings::{SUBCOMMAND as LATEST, print_latest};
pub use tables::{SUBCOMMAND as TABLES, write_part};
pub use top::run as top;

/// Runs the command.
pub fn run(args: &WatchArgs) -> Result<ExitCode, Failure> {
    let settings = Settings::read(args)?;
    check_exists(&settings.record, &HostFiles)?;
    check_permitted(&HostFiles)?;
    descriptors::raise_limit();
    let signals = Signals::install()
        .map_err(|error| Failure::failed(format!("cannot take signals: {error}: start it again")))?;
    let port = Listener::tcp(settings.listen).map_err(Failure::failed)?;
    let address = port.address().unwrap_or(settings.listen);
    let socket = Listener::unix(&settings.socket).map_err(Failure::failed)?;
    let metrics = Metrics::new(settings.severities.clone(), settings.max_series)
        .with_containers(settings.label_containers)
        .with_budgets(settings.record.budgets.clone());
    let watches_all = settings.record.target == Target::System;
    let metrics = Arc::new(Mutex::new(metrics.of_all_threads(watches_all)));
    let (sender, inbox) = commands().map_err(|error| {
        Failure::failed(format!("cannot make a pair of sockets: {error}: start it again"))
    })?;
    let hosts = settings.hosts.clone();
    let mut service = Service::load(args, settings, Arc::clone(&metrics), Notifier::from_environment())?;
    let (recording, meaning) = (service.recording(), args.meaning.as_options());
    let site = WatchSite::new(metrics, sender, service.freshness(), service.page(), (&recording, &meaning));
    let server = Server::start(vec![port, socket], Arc::new(site), hosts)
        .map_err(|error| Failure::failed(format!("cannot start serving: {error}: start it again")))?;
    say(&format!("watching {}: http://{address}/metrics", service.target()));
    let ended = service.run(&signals, &inbox);
    // Orders that are still waiting fail now, instead of at their timeout.
    drop(inbox);
    drop(server);
    service.finish()?;
    ended.map(|()| ExitCode::SUCCESS)
}
