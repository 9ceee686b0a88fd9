//! What `stats reset` remembers: the counts of that moment, in a file of the caller's own. Nobody else's counts change.

use crate::error::Error;
use crate::program::open_regular;
use shunpike_broker::report::{ConnectionCounts, RoleCounts, Stats, Traffic};
use std::env;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where the caller's counts at a broker's socket are kept.
fn file(socket: &Path) -> Option<PathBuf> {
    let state = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".local/state"));
    let mut hash = DefaultHasher::new();
    socket.hash(&mut hash);
    Some(state.or_else(home)?.join("shunpike").join(format!("stats-{:016x}.json", hash.finish())))
}

/// Remembers `stats` as the caller's zero.
pub fn remember(socket: &Path, stats: &Stats) -> Result<(), Error> {
    let Some(path) = file(socket) else {
        return Err(Error::Refused(shunpike_broker::report::Failure {
            what: "no place to remember the counts at".into(),
            on: "neither XDG_STATE_HOME nor HOME is set".into(),
            hint: "set one, or reset the broker's own counts with 'shunpike stats reset --all'".into(),
        }));
    };
    let failed = |source| Error::Write { path: path.clone(), source };
    let text = serde_json::to_string(stats).expect("a report is text and numbers");
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    // Written beside and renamed: a reader finds the old counts or the new ones.
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let mut written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
    let done = written.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, &path));
    done.inspect_err(|_| drop(fs::remove_file(&new))).map_err(failed)
}

/// What `remember` wrote. The directory may be another user's, as root's HOME is after `su`: anything may lie there.
fn read(path: &Path) -> io::Result<String> {
    const MOST: u64 = 1 << 20;
    let mut text = String::new();
    open_regular(path)?.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

/// The counts since the caller's last reset; all of them if there was none in this broker's life.
pub fn since(socket: &Path, stats: &mut Stats) {
    let text = file(socket).and_then(|path| read(&path).ok()).unwrap_or_default();
    if let Ok(before) = serde_json::from_str::<Stats>(&text)
        && before.broker == stats.broker
    {
        subtract(stats, &before);
    }
}

/// Takes `before` away from `stats`. A count that is less than it was (the broker's own was reset) is zero.
pub fn subtract(stats: &mut Stats, before: &Stats) {
    let less = |to: &mut u64, from: u64| *to = to.saturating_sub(from);
    let ConnectionCounts { handled, smc, fallback, client, server, reasons, revoked, handshake_errors } =
        &mut stats.connections;
    let then = &before.connections;
    for (to, from) in [
        (handled, then.handled),
        (smc, then.smc),
        (fallback, then.fallback),
        (revoked, then.revoked),
        (handshake_errors, then.handshake_errors),
        (&mut stats.sleeps, before.sleeps),
        (&mut stats.corked, before.corked),
        (&mut stats.spins, before.spins),
    ] {
        less(to, from);
    }
    stats.wakeups = stats.wakeups.since(&before.wakeups);
    for (to, from) in [(client, then.client), (server, then.server)] {
        let RoleCounts { handled, smc, fallback } = to;
        less(handled, from.handled);
        less(smc, from.smc);
        less(fallback, from.fallback);
    }
    for reason in reasons.iter_mut() {
        if let Some(from) = then.reasons.iter().find(|from| from.code == reason.code) {
            less(&mut reason.client, from.client);
            less(&mut reason.server, from.server);
        }
    }
    reasons.retain(|reason| reason.client + reason.server > 0);
    for (to, from) in [(&mut stats.tx, &before.tx), (&mut stats.rx, &before.rx)] {
        let Traffic { bytes, calls, histogram } = to;
        less(bytes, from.bytes);
        less(calls, from.calls);
        for (to, from) in histogram.iter_mut().zip(&from.histogram) {
            less(&mut to.calls, from.calls);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (fifo, file) = (dir.path().join("fifo"), dir.path().join("file"));
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
        assert!(read(&fifo).is_err());
        fs::write(&file, "text").expect("written");
        assert_eq!(read(&file).expect("readable"), "text");
    }
}
