//! What `stats reset` remembers: the counts of that moment, in a file of the caller's own. Nobody else's counts change.

use crate::error::Error;
use crate::replace::Place;
use rustix::fs::{FileType, Mode, OFlags};
use shunpike_broker::report::{ConnectionCounts, RoleCounts, Stats, Traffic};
use std::env;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
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
    let text = serde_json::to_string(stats).expect("a report is text and numbers");
    write(&path, text.as_bytes()).map_err(|source| Error::Write { path, source })
}

/// The directory may be another user's, as root's HOME is under some sudo: no link of that user's is followed.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    Place::on_trusted_way(path, true)?.replace(content, 0o600)
}

/// What `remember` wrote. The directory may be another user's: anything may lie there.
fn read(path: &Path) -> io::Result<String> {
    const MOST: u64 = 1 << 20;
    let mut text = String::new();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = Place::on_trusted_way(path, false)?.open(flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    File::from(file).take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

/// The counts since the caller's last reset; all of them if there was none since the broker began or had its own reset.
pub fn since(socket: &Path, stats: &mut Stats) {
    let text = file(socket).and_then(|path| read(&path).ok()).unwrap_or_default();
    if let Ok(before) = serde_json::from_str::<Stats>(&text)
        && stats.goes_on_from(&before)
    {
        subtract(stats, &before);
    }
}

/// Takes `before` away from `stats`. A count that is less than it was, as what programs have written may be, is zero.
fn subtract(stats: &mut Stats, before: &Stats) {
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
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    /// What was counted since the broker's reset was taken for less than what had been counted before it.
    #[test]
    fn counts_from_before_the_brokers_own_reset_are_not_taken_away() {
        let text = |sleeps: u64, more: &str| {
            format!(
                r#"{{"connections":{{"handled":0,"smc":0,"fallback":0,"client":{{"handled":0,"smc":0,"fallback":0}},
                "server":{{"handled":0,"smc":0,"fallback":0}},"reasons":[],"revoked":0,"handshake_errors":0}},
                "tx":{{"bytes":0,"calls":0,"histogram":[]}},"rx":{{"bytes":0,"calls":0,"histogram":[]}},
                "sleeps":{sleeps},"spins":0,"corked":0,"wakeups":{{"classes":[]}},"broker":"a"{more}}}"#
            )
        };
        let stats = |sleeps, more| serde_json::from_str::<Stats>(&text(sleeps, more)).expect("stats");
        let (before, older) = (stats(100, r#","resets":0"#), stats(100, ""));
        for (now, wanted) in [
            (stats(130, r#","resets":0,"at_us":7"#), true),
            (stats(130, ""), true),
            (stats(30, r#","resets":1"#), false),
            (Stats { broker: "b".into(), ..stats(130, "") }, false),
        ] {
            assert_eq!((now.goes_on_from(&before), now.goes_on_from(&older)), (wanted, wanted), "{now:?}");
        }
        let mut now = stats(130, "");
        subtract(&mut now, &before);
        assert_eq!(now.sleeps, 30);
    }

    #[test]
    fn what_is_remembered_is_found_by_links_of_ones_own_too() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join(".local/state/shunpike/stats.json");
        write(&path, b"one").expect("written");
        write(&path, b"two").expect("written");
        assert_eq!(read(&path).expect("readable"), "two");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().expect("one")).expect("readable").count(), 1);
        symlink(".local/state/../state", dir.path().join("link")).expect("a link");
        assert_eq!(read(&dir.path().join("link/shunpike/stats.json")).expect("readable"), "two");
    }

    #[test]
    fn another_users_links_lead_nowhere() {
        // Only root can give them away.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let (home, roots) = (dir.path().join("home"), dir.path().join("roots"));
        for made in [&home, &roots] {
            fs::create_dir(made).expect("a directory");
        }
        let theirs = |path: &Path| lchown(path, Some(61_001), None).expect("given away");
        theirs(&home);
        let path = home.join(".local/state/shunpike/stats.json");
        // One of theirs, and one that was root's, in a directory of theirs, into which they have moved it.
        for is_their_link in [true, false] {
            symlink(&roots, home.join(".local")).expect("a link");
            if is_their_link {
                theirs(&home.join(".local"));
            }
            assert!(write(&path, b"text").is_err() && read(&path).is_err());
            assert_eq!(fs::read_dir(&roots).expect("readable").count(), 0, "nothing is made there");
            fs::remove_file(home.join(".local")).expect("removed");
        }
        fs::create_dir_all(path.parent().expect("one")).expect("directories");
        fs::write(roots.join("file"), "before").expect("written");
        symlink(roots.join("file"), &path).expect("a link");
        assert!(read(&path).is_err());
        write(&path, b"text").expect("in its place");
        assert_eq!(fs::read_to_string(roots.join("file")).expect("readable"), "before");
        assert_eq!(read(&path).expect("readable"), "text");
    }

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
