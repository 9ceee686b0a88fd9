//! Where a broker lives: its directory, its socket, and the file that makes it the only one there.
//!
//! Beside the socket lies `<socket>.state`: locked (flock) by the broker that serves the socket, and holding
//! the device's GID for as long as the system is up, so that a restarted broker is the same device.

use crate::config::Config;
use crate::datagram;
use crate::dial::{connect_at, operators_socket, who_serves, with_suffix};
use crate::error::BrokerError;
use crate::random;
use crate::report::OpenFiles;
use crate::sockopt;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use shunpike_wire::Gid;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Connections that may wait to be accepted: a busy broker must not make programs look brokerless. The kernel allows as many
/// (net.core.somaxconn) since Linux 5.4.
const BACKLOG: i32 = 4096;

/// A helper that a broker had just forked as it was killed has its lock until it runs for the first time and finds itself without a
/// parent: a lock of which no broker answers is waited for so long,
const INHERITED: Duration = Duration::from_secs(1);
/// and looked at this often.
const PAUSE: Duration = Duration::from_millis(5);

/// A place that this process alone serves, until it is dropped.
pub struct Place {
    socket: PathBuf,
    state: File,
}

impl Place {
    /// Makes the socket's directory if need be and takes its lock.
    /// Errors: a directory that others could write to, or a broker that serves there already.
    pub fn claim(config: &Config) -> Result<Self, BrokerError> {
        let socket = config.socket.clone();
        let directory = socket.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mode = if config.private { 0o700 } else { 0o755 };
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |error| BrokerError::Io { what, path, error }
        };
        make_directory(directory, mode).map_err(failed("create the directory", directory))?;
        check_directory(directory)?;
        let path = with_suffix(&socket, ".state");
        let state = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(failed("open the state file", &path))?;
        let begin = Instant::now();
        loop {
            match rustix::fs::flock(&state, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { socket, state }),
                Err(Errno::WOULDBLOCK) if may_be_served(&socket) => {
                    return Err(BrokerError::AlreadyServed { socket });
                }
                Err(Errno::WOULDBLOCK) if begin.elapsed() > INHERITED => {
                    let holder = holder_of(&state);
                    return Err(BrokerError::Unheard { socket, lock: path, holder });
                }
                Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
                Err(errno) => return Err(failed("lock the state file", &path)(errno.into())),
            }
        }
    }

    /// Listens at the socket, in the place of whatever a dead broker left there, with this mode and group.
    pub fn listen(&self, mode: u32, group: Option<u32>) -> Result<OwnedFd, BrokerError> {
        Self::listen_at(&self.socket, mode, group)
    }

    /// Listens at the [`operators_socket`]: for the broker's own user, and root.
    pub fn listen_for_operator(&self) -> Result<OwnedFd, BrokerError> {
        Self::listen_at(&operators_socket(&self.socket), 0o600, None)
    }

    fn listen_at(socket: &Path, mode: u32, group: Option<u32>) -> Result<OwnedFd, BrokerError> {
        if std::fs::symlink_metadata(socket).is_ok_and(|meta| !meta.file_type().is_socket()) {
            return Err(BrokerError::NotASocket { path: socket.to_owned() });
        }
        let new = with_suffix(socket, ".new");
        let failed = |what| {
            let path = socket.to_owned();
            move |errno: Errno| BrokerError::Io { what, path, error: errno.into() }
        };
        let _ = std::fs::remove_file(&new);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(failed("make a socket for"))?;
        // Before anybody can connect, for a connection has this from its listener.
        datagram::mark_messages(listener.as_fd()).map_err(failed("have messages marked at"))?;
        let address = SocketAddrUnix::new(&new).map_err(failed("name the socket"))?;
        rustix::net::bind(&listener, &address).map_err(failed("bind"))?;
        // Owned first: nobody connects by a mode that is meant for another group.
        if group.is_some() {
            std::os::unix::fs::chown(&new, None, group).map_err(|error| BrokerError::Io {
                what: "give the group to",
                path: new.clone(),
                error,
            })?;
        }
        rustix::fs::chmod(&new, Mode::from_raw_mode(mode)).map_err(failed("set the mode of"))?;
        rustix::net::listen(&listener, BACKLOG).map_err(failed("listen at"))?;
        // Whoever finds the name finds a broker that listens.
        rustix::fs::rename(&new, socket).map_err(failed("rename the new socket to"))?;
        Ok(listener)
    }

    /// Gives the socket another mode and group.
    pub fn own(&self, mode: u32, group: u32) -> std::io::Result<()> {
        // As when it is made: nobody connects by a mode that is meant for another group.
        let before = rustix::fs::stat(&self.socket)?.st_mode & 0o7777;
        rustix::fs::chmod(&self.socket, Mode::empty())?;
        let owned = std::os::unix::fs::chown(&self.socket, None, Some(group));
        // One that may not have the group keeps its mode, too.
        let mode = if owned.is_ok() { mode } else { before };
        rustix::fs::chmod(&self.socket, Mode::from_raw_mode(mode))?;
        owned
    }

    /// Takes the names away from newcomers, so that [`Place::leave`] or [`Place::stay`] can follow.
    pub fn hide(&self) {
        for socket in self.sockets() {
            let _ = std::fs::rename(&socket, with_suffix(&socket, ".closing"));
        }
    }

    /// Gives the names back.
    pub fn stay(&self) {
        for socket in self.sockets() {
            let _ = std::fs::rename(with_suffix(&socket, ".closing"), &socket);
        }
    }

    /// Removes the sockets.
    pub fn leave(&self) {
        for socket in self.sockets() {
            let _ = std::fs::remove_file(with_suffix(&socket, ".closing"));
            let _ = std::fs::remove_file(&socket);
        }
    }

    fn sockets(&self) -> [PathBuf; 2] {
        [self.socket.clone(), operators_socket(&self.socket)]
    }

    /// The GID of this place's device: the one kept since the system came up, or a new one, kept from now on.
    pub fn gid(&mut self) -> Result<Gid, BrokerError> {
        let path = with_suffix(&self.socket, ".state");
        let failed = |error| BrokerError::Io { what: "use the state file", path, error };
        let boot = boot_id();
        let mut text = String::new();
        // Whatever is not what was written below is as good as nothing.
        let _ = self.state.read_to_string(&mut text);
        let kept = text
            .split_once(' ')
            .filter(|(of_boot, _)| *of_boot == boot)
            .and_then(|(_, gid)| u128::from_str_radix(gid.trim_end(), 16).ok());
        if let Some(gid) = kept {
            return Ok(Gid(gid));
        }
        let gid = random::gid();
        let write = |state: &mut File| {
            state.set_len(0)?;
            state.rewind()?;
            writeln!(state, "{boot} {:032x}", gid.0)
        };
        write(&mut self.state).map_err(failed)?;
        Ok(gid)
    }
}

/// Whether a broker that lives listens there, at the socket that everybody uses: also one whom so many ask that nobody can be added
/// without waiting.
fn may_be_served(socket: &Path) -> bool {
    let is_busy = |errno: Errno| errno == Errno::AGAIN;
    let is_there =
        connect_at(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_or_else(is_busy, |_| true);
    is_there
        && who_serves(socket).map_or_else(|error| error.kind() == std::io::ErrorKind::WouldBlock, |_| true)
}

/// The process that has locked this file, where /proc tells.
fn holder_of(state: &File) -> Option<u32> {
    let meta = state.metadata().ok()?;
    let (device, inode) = (meta.dev(), meta.ino());
    let wanted = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
    // `1: FLOCK  ADVISORY  WRITE 1234 00:2f:5678 0 EOF`
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.as_slice() {
            [_, "FLOCK", _, _, pid, file, ..] if *file == wanted => pid.parse().ok().filter(|pid| *pid != 0),
            _ => None,
        }
    })
}

/// Makes a directory and those that it is in, as far as they are not there, each with this mode whatever the umask is.
fn make_directory(path: &Path, mode: u32) -> std::io::Result<()> {
    if path.as_os_str().is_empty() || std::fs::metadata(path).is_ok_and(|meta| meta.is_dir()) {
        return Ok(());
    }
    if let Some(outer) = path.parent() {
        make_directory(outer, mode)?;
    }
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        // Somebody else was faster, whose directory it is.
        Err(_) if std::fs::metadata(path).is_ok_and(|meta| meta.is_dir()) => return Ok(()),
        Err(error) => return Err(error),
    }
    // Opened, so that nobody can put another one in its place: of that the mode stays.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::open(path, flags, Mode::empty())?;
    if rustix::fs::fstat(&made)?.st_uid == rustix::process::geteuid().as_raw() {
        rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

/// Random id of this boot, 36 characters; empty where /proc does not tell.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim_end().to_owned()
}

/// Whether the process that connected `socket`, and not one that has its number now, is in the very pid namespace that we are in,
/// and in none below. False where the kernel does not name the process itself (SO_PEERPIDFD, before Linux 6.5), or /proc does
/// not tell.
pub fn shares_our_pids(socket: BorrowedFd<'_>) -> bool {
    sockopt::peer_process(socket).is_some_and(|process| {
        // Of the process itself (fs/pidfs.c), and without its groups, which may be 65,536.
        let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()));
        told.is_ok_and(|told| has_one_number(&told)) && is_proc_ours() && sockopt::lives(&process)
    })
}

/// The descriptors of this process; `None` where /proc does not tell.
pub fn open_files() -> Option<OpenFiles> {
    // Linux 6.2 and later say how many there are; before, the size is 0, and the directory that is read is one of them.
    let open = match std::fs::metadata("/proc/self/fd").ok()?.len() {
        0 => std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64,
        open => open,
    };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current?;
    Some(OpenFiles { open, limit })
}

/// How many descriptors may be under way in sockets, ours and our helpers'.
pub fn descriptors_under_way() -> usize {
    // CAP_SYS_ADMIN or CAP_SYS_RESOURCE of the machine, not of a user namespace: net/core/scm.c, too_many_unix_fds().
    const EXEMPT: u64 = 1 << 21 | 1 << 24;
    let ours = Confinement::of(std::process::id());
    let is_all = |users: &str| users.split_whitespace().eq(["0", "0", "4294967295"]);
    if ours.is_some_and(|ours| ours.effective & EXEMPT != 0 && is_all(&ours.users)) {
        return usize::MAX;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Whether [`shares_our_pids`] can be true: it is of this process.
pub fn knows_operators() -> bool {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .is_ok_and(|(one, _other)| shares_our_pids(one.as_fd()))
}

/// Whether the process that connected `socket` lives, so that what /proc said of its number is said of it. False before Linux 6.5.
pub fn is_alive(socket: BorrowedFd<'_>) -> bool {
    sockopt::peer_process(socket).is_some_and(|process| sockopt::lives(&process))
}

/// What /proc/PID/status says of a process that matters here. To be asked for by a helper: it has all groups of the process.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Its number in its own pid namespace; `None` where /proc does not tell.
    own: Option<u32>,
    /// Whether it is in the very pid namespace that we are in.
    is_ours: bool,
    /// Whether a filter of system calls may end it.
    is_filtered: bool,
    /// Capabilities, permitted and effective.
    capabilities: Option<(u64, u64)>,
}

impl Status {
    /// That of a process, by its number here.
    pub fn of(pid: u32) -> Self {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let mask = |name: &str| u64::from_str_radix(field(name)?.trim(), 16).ok();
        Self {
            own: field("NSpid:").and_then(|names| names.split_whitespace().next_back()?.parse().ok()),
            // A /proc of another namespace would tell of other processes.
            is_ours: pid != 0 && has_one_number(&text) && is_proc_ours(),
            is_filtered: field("Seccomp:").is_none_or(|mode| mode.trim() != "0"),
            capabilities: mask("CapPrm:").zip(mask("CapEff:")),
        }
    }

    /// Whether the process may be told of others by their numbers, for process_vm_readv(2): it names them as we do, and no filter
    /// of system calls would end it for that call.
    pub fn may_read_others(self) -> bool {
        self.is_ours && !self.is_filtered
    }
}

/// What of a process decides whether the kernel would let another one of its user look at its memory (ptrace(2)), as /proc tells
/// it to anybody.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Confinement {
    /// How its user namespace maps users: two that map them otherwise are not the same.
    users: String,
    /// Its pid namespace: ours, or another by its link in /proc, where we may read that.
    pids: Option<PathBuf>,
    permitted: u64,
    effective: u64,
}

impl Confinement {
    /// That of a process, by its number here. `None` where /proc does not tell, or of other processes.
    pub fn of(pid: u32) -> Option<Self> {
        Self::with(pid, Status::of(pid))
    }

    /// That of a process of which this is known.
    pub fn with(pid: u32, status: Status) -> Option<Self> {
        let link = || std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let (permitted, effective) = status.capabilities?;
        Some(Self {
            users: std::fs::read_to_string(format!("/proc/{pid}/uid_map")).ok()?,
            pids: if status.is_ours { Some("ours".into()) } else { link() },
            permitted,
            effective,
        })
    }

    /// Whether it may look at any process here.
    pub fn sees_all(&self) -> bool {
        const CAP_SYS_PTRACE: u32 = 19;
        let own_users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        self.pids == Some("ours".into())
            && self.users == own_users
            && self.effective & (1 << CAP_SYS_PTRACE) != 0
    }

    /// Whether it may look at another one of its user.
    pub fn sees(&self, other: &Self) -> bool {
        self.pids.is_some()
            && self.pids == other.pids
            && self.users == other.users
            && other.permitted & !self.permitted == 0
    }
}

/// What a process calls itself.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum OwnPid {
    /// What we call it, too.
    Ours,
    /// This, in a pid namespace below ours.
    Other(u32),
    /// /proc does not tell.
    Unknown,
}

impl OwnPid {
    /// That of a process of which this is known.
    pub fn with(status: Status) -> Self {
        match status.own {
            _ if status.is_ours => Self::Ours,
            own => own.map_or(Self::Unknown, Self::Other),
        }
    }

    /// Whether the process, which we call `here`, calls itself `own`.
    pub fn is(self, own: u32, here: u32) -> bool {
        match self {
            Self::Ours => own == here,
            Self::Other(number) => own == number,
            Self::Unknown => false,
        }
    }
}

/// Whether /proc names processes as we do.
fn is_proc_ours() -> bool {
    std::fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == &*std::process::id().to_string())
}

/// Whether a process has a number in our pid namespace, and in none below, by its status or a pidfd's fdinfo.
fn has_one_number(text: &str) -> bool {
    let names = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
    names.is_some_and(|names| {
        let mut names = names.split_whitespace();
        names.next().is_some_and(|first| first != "0" && first != "-1") && names.next().is_none()
    })
}

/// Whoever can write to the directory can put a socket of its own in the place of ours.
pub(crate) fn check_directory(path: &Path) -> Result<(), BrokerError> {
    let meta = std::fs::symlink_metadata(path).map_err(|error| BrokerError::Io {
        what: "look at the directory",
        path: path.to_owned(),
        error,
    })?;
    let own = rustix::process::geteuid().as_raw();
    let safe = meta.is_dir() && (meta.uid() == own || meta.uid() == 0) && meta.mode() & 0o022 == 0;
    if safe { Ok(()) } else { Err(BrokerError::UnsafeDirectory { path: path.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn config(directory: &Path) -> Config {
        Config::new(directory.join("broker.sock"))
    }

    #[test]
    fn one_broker_a_socket() {
        let base = tempfile::tempdir().unwrap();
        let config = config(&base.path().join("run"));
        let place = Place::claim(&config).unwrap();
        let own = std::process::id();
        let unheard = Place::claim(&config);
        // In a pid namespace of its own /proc may tell nothing.
        let is_own = |holder: Option<u32>| holder.is_none_or(|pid| pid == own);
        assert!(matches!(unheard, Err(BrokerError::Unheard { holder, .. }) if is_own(holder)));
        let listener = place.listen(0o600, None).unwrap();
        assert!(matches!(Place::claim(&config), Err(BrokerError::AlreadyServed { .. })));
        drop((listener, place));
        Place::claim(&config).unwrap();
        let mode = std::fs::metadata(base.path().join("run")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    /// As of a helper that was forked just before its broker was killed.
    #[test]
    fn a_lock_that_a_dead_brokers_child_has_is_waited_for() {
        let base = tempfile::tempdir().unwrap();
        let config = config(base.path());
        let place = Place::claim(&config).unwrap();
        let childs = place.state.try_clone().unwrap();
        drop(place);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                drop(childs);
            });
            Place::claim(&config).unwrap();
        });
    }

    #[test]
    fn the_gid_outlives_the_broker_but_not_the_boot() {
        let base = tempfile::tempdir().unwrap();
        let config = config(base.path());
        let first = Place::claim(&config).unwrap().gid().unwrap();
        assert_eq!(Place::claim(&config).unwrap().gid().unwrap(), first);
        let state = with_suffix(&config.socket, ".state");
        let text = std::fs::read_to_string(&state).unwrap();
        let earlier_boot = "0".repeat(36) + text.get(36..).unwrap();
        std::fs::write(&state, earlier_boot).unwrap();
        assert_ne!(Place::claim(&config).unwrap().gid().unwrap(), first);
        std::fs::write(&state, b"\xff nonsense").unwrap();
        Place::claim(&config).unwrap().gid().unwrap();
    }

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let base = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o770, 0o702] {
            std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let refused = Place::claim(&config(base.path()));
            assert!(matches!(refused, Err(BrokerError::UnsafeDirectory { .. })), "{mode:o}");
        }
        std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Place::claim(&config(base.path())).unwrap();
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        assert!(matches!(Place::claim(&config(&link)), Err(BrokerError::UnsafeDirectory { .. })));
    }

    #[test]
    fn a_dead_brokers_socket_is_replaced_and_a_file_is_not() {
        let base = tempfile::tempdir().unwrap();
        let config = config(base.path());
        let place = Place::claim(&config).unwrap();
        drop(place.listen(0o600, None).unwrap());
        let listener = place.listen(0o600, None).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let client =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::connect(&client, &SocketAddrUnix::new(&config.socket).unwrap()).unwrap();
        rustix::net::accept(&listener).unwrap();
        place.leave();
        assert!(!config.socket.exists());
        std::fs::write(&config.socket, "precious").unwrap();
        assert!(matches!(place.listen(0o600, None), Err(BrokerError::NotASocket { .. })));
    }
}
