//! `shunpike broker`: from options to the broker library's configuration, and signals to its end or to its policy.

use crate::args::Broker;
use crate::error::Error;
use crate::log::Log;
use crate::socket;
use crate::tools::kernel;
use shunpike_broker::policy::{Policy, SYSTEM_FILE, Source};
use shunpike_broker::report::Failure;
use shunpike_broker::settings::{Knob, Origin, Setting};
use shunpike_broker::{BrokerError, Config, Order, Orders, Successor};
use shunpike_wire::Gid;
use std::cell::Cell;
use std::env;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::Duration;

/// What a broker listens to. SIGHUP has it read its policy again where somebody sends it, and ends it where its terminal is gone.
const HEEDED: [(i32, &str); 3] =
    [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT"), (libc::SIGHUP, "SIGHUP")];

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
    config.source = source(args.config, args.private, config.policy);
    let file = config.source.read().map_err(Error::Policy)?;
    (config.policy, config.settings, config.metrics) = (file.policy, file.settings, file.metrics);
    config.settings.extend(environment().map_err(Error::Refused)?);
    let set = args.set.iter().map(|text| Setting::parse(text, Origin::CommandLine));
    config.settings.extend(set.collect::<Result<Vec<_>, _>>().map_err(Error::Refused)?);
    config.metrics = args.metrics.or(config.metrics);
    config.gid = args.gid.map(Gid);
    config.ueids = args.ueids;
    config.successor = args.yield_to.map(Successor::new);
    config.idle_exit = args.idle_exit.map(|seconds| Duration::from_secs(seconds.into()));
    let level = if args.verbose { tracing::Level::DEBUG } else { tracing::Level::INFO };
    tracing_subscriber::fmt().with_writer(|| Log).with_max_level(level).with_target(false).init();
    let stop = stop_signals().map_err(Error::Signals)?;
    // A broker that stays keeps no file system from being unmounted.
    let _ = env::set_current_dir("/");
    let told = Cell::new(None);
    let take = || {
        let order = taken(&stop);
        let ends = order.is_some_and(|sent| sent.order() == Order::End);
        told.set(if ends { order } else { None });
        order.map_or(Order::Nothing, |sent| sent.order())
    };
    let orders = Some(Orders { fd: stop.as_fd(), take: &take });
    shunpike_broker::serve(&mut config, orders).map_err(Error::Broker)?;
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
        match shunpike_broker::serve(&mut config, orders) {
            // Started meanwhile by a `run` that found none.
            Err(BrokerError::AlreadyServed { .. }) => {
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

/// Where the policy is read from: the file named, else the one at the usual place. It is found again later, whatever the working
/// directory is by then.
pub fn source(named: Option<PathBuf>, private: bool, built_in: Policy) -> Source {
    let named = named.map(|path| std::path::absolute(&path).unwrap_or(path));
    let is_named = named.is_some();
    let usual = || {
        if !private {
            return Some(SYSTEM_FILE.into());
        }
        let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
        let directory = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        Some(directory.or_else(home)?.join("shunpike/broker.toml"))
    };
    Source { path: named.or_else(usual), is_named, private, built_in }
}

/// Where a broker listens if not told.
pub fn default_socket(private: bool) -> PathBuf {
    if private { socket::private() } else { socket::SYSTEM.into() }
}

/// A descriptor that is readable once the broker is told something.
pub fn stop_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset makes the set, which the following calls read; a null old mask is allowed. No
    // handler is installed, and the process has one thread, so that blocking here blocks everywhere.
    // SIGPIPE is ignored because our start-up, unlike std's, does not: a closed log must not end the broker.
    let fd = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for (signal, _) in HEEDED {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        // The starter's mask may block more, for instance where it is a program's worker thread.
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: signalfd has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A signal, and who sent it.
#[derive(Copy, Clone)]
struct Told {
    signal: &'static str,
    pid: u32,
    uid: u32,
    /// Whether a process sent it, and not the kernel as the terminal went away.
    by_process: bool,
}

impl Told {
    fn order(&self) -> Order {
        if self.signal == "SIGHUP" && self.by_process { Order::Reload } else { Order::End }
    }
}

/// Takes the signal that has come, if one has.
fn taken(stop: &OwnedFd) -> Option<Told> {
    // struct signalfd_siginfo: ssi_signo, ssi_errno, ssi_code, ssi_pid, ssi_uid, then what does not matter here.
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    rustix::io::read(stop, &mut info).ok()?;
    let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let (_, signal) = HEEDED.into_iter().find(|(number, _)| word(0) == *number as u32)?;
    // ssi_code: the kernel's own is positive (SI_KERNEL), a process's is not (SI_USER, SI_QUEUE, SI_TKILL).
    Some(Told { signal, pid: word(12), uid: word(16), by_process: word(8) as i32 <= 0 })
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
