//! `shunpike broker`: from options to the broker library's configuration, and signals to its end or to its policy.

use crate::args::Broker;
use crate::error::Error;
use crate::kernel;
use crate::log::Log;
use crate::policy;
use crate::signals;
use crate::socket;
use shunpike_broker::loopback::LoopbackIsm;
use shunpike_broker::policy::Policy;
use shunpike_broker::report::Failure;
use shunpike_broker::settings::{Knob, Origin, Setting};
use shunpike_broker::{BrokerError, Config, Order, Orders, Successor};
use shunpike_wire::Gid;
use shunpike_wire::session::MAX_UEIDS;
use std::cell::Cell;
use std::env;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Serves until idle, or until SIGTERM or SIGINT.
///
/// A program opens its session when it has a connection that deserves a lane. Idle is therefore not only that
/// no session is open: nobody may be left who could open one.
pub fn serve(args: Broker, named: Option<PathBuf>) -> Result<(), Error> {
    let socket = named.unwrap_or_else(|| default_socket(args.private));
    let mut config = if args.private { Config::new(socket) } else { Config::system_wide(socket) };
    if let Some(max_dmbs) = args.max_dmbs {
        config.max_dmbs = max_dmbs as usize;
        if !args.private {
            config.policy = Policy::system_wide(config.max_sessions, config.max_dmbs);
        }
    }
    config.source = policy::source(args.config, args.private, config.policy);
    let file = config.source.read().map_err(Error::Policy)?;
    (config.policy, config.settings, config.metrics) = (file.policy, file.settings, file.metrics);
    config.programs = file.programs;
    config.settings.extend(environment().map_err(Error::Refused)?);
    let set = args.set.iter().map(|text| Setting::parse(text, Origin::CommandLine));
    config.settings.extend(set.collect::<Result<Vec<_>, _>>().map_err(Error::Refused)?);
    config.metrics = args.metrics.or(config.metrics);
    if args.ueids.len() > MAX_UEIDS {
        return Err(Error::Refused(Failure {
            what: "too many UEIDs".into(),
            on: format!("--ueid, {} times", args.ueids.len()),
            hint: format!("a system has {MAX_UEIDS} at most: leave the others away"),
        }));
    }
    config.gid = args.gid.map(Gid);
    config.ueids = args.ueids;
    config.successor = args.yield_to.map(Successor::new);
    config.idle_exit = args.idle_exit.map(|seconds| Duration::from_secs(seconds.into()));
    let level = if args.verbose { tracing::Level::DEBUG } else { tracing::Level::INFO };
    tracing_subscriber::fmt().with_writer(|| Log).with_max_level(level).with_target(false).init();
    let stop = signals::stop_signals().map_err(Error::Signals)?;
    // A broker that stays keeps no file system from being unmounted.
    let _ = env::set_current_dir("/");
    let told = Cell::new(None);
    let take = || {
        let order = signals::taken(&stop);
        let ends = order.is_some_and(|sent| sent.order() == Order::End);
        told.set(if ends { order } else { None });
        order.map_or(Order::Nothing, |sent| sent.order())
    };
    let orders = Some(Orders { fd: stop.as_fd(), take: &take });
    shunpike_broker::serve(&mut config, LoopbackIsm::boxed, orders).map_err(Error::Broker)?;
    let successor = config.successor.clone();
    let is_superseded = || successor.as_ref().is_some_and(Successor::serves);
    loop {
        if let Some(told) = told.get() {
            tracing::info!(signal = told.signal, by_pid = told.pid, by_uid = told.uid, "told to end");
            return Ok(());
        }
        if is_superseded() {
            tracing::info!("ends: the broker that it was to leave for serves");
            return Ok(());
        }
        if !is_named_by_programs(&config.socket) {
            tracing::info!("ends: idle, and no program is left that could come");
            return Ok(());
        }
        match shunpike_broker::serve(&mut config, LoopbackIsm::boxed, orders) {
            // Started meanwhile by a `run` that found none.
            Err(BrokerError::AlreadyServed { .. } | BrokerError::Unheard { .. }) => {
                tracing::info!("ends: another broker serves there meanwhile");
                return Ok(());
            }
            other => other.map_err(Error::Broker)?,
        }
    }
}

/// What the environment says of settings.
fn environment() -> Result<Vec<Setting>, Failure> {
    let named = |knob: Knob| Some((knob, env::var(knob.variable()).ok().filter(|value| !value.is_empty())?));
    Knob::ALL
        .into_iter()
        .filter_map(named)
        .map(|(knob, value)| {
            let (text, variable) = (format!("{}={value}", knob.name()), knob.variable());
            Setting::parse(&text, Origin::Environment(variable.clone()))
                .map_err(|failure| Failure { on: format!("{variable}={value}"), ..failure })
        })
        .collect()
}

/// Where a broker listens if not told.
pub fn default_socket(private: bool) -> PathBuf {
    if private { socket::private() } else { socket::SYSTEM.into() }
}

/// Whether a process that we may look into was started with `socket` as its broker's.
fn is_named_by_programs(socket: &Path) -> bool {
    let wanted = [socket::VARIABLE.as_bytes(), b"=", socket.as_os_str().as_bytes()].concat();
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    let pids = processes.flatten().filter_map(|process| process.file_name().to_str()?.parse().ok());
    let (own, user) = (std::process::id(), rustix::process::geteuid().as_raw());
    // Root may look into others' programs, which are not served here, and could have the look take for ever: what lies where their
    // environment was may be a file of theirs.
    pids.filter(|pid| *pid != own && kernel::is_of(*pid, user)).any(|pid| {
        let environment = kernel::environment(pid).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted)
    })
}
