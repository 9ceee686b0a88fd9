//! What /proc says of other processes and their sockets, as far as the caller may look.

use shunpike_broker::text::plain_name;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A row of /proc/PID/net/tcp.
#[derive(Copy, Clone, Debug)]
pub struct Socket {
    /// Own address.
    pub local: SocketAddr,
    /// The peer's; unspecified without one.
    pub remote: SocketAddr,
    /// The kernel's state: 1 established, 10 listening, ...
    pub state: u8,
    /// Owner.
    pub uid: u32,
    /// Names the socket; 0 without one.
    pub inode: u64,
}

/// TCP's number of a listening socket's state.
pub const LISTEN: u8 = 10;

/// All TCP sockets of the network namespace that a process (`self`) is in.
pub fn sockets(process: &str) -> Vec<Socket> {
    let table = |name: &str| fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default();
    ["tcp", "tcp6"]
        .iter()
        .flat_map(|name| table(name).lines().skip(1).filter_map(socket).collect::<Vec<_>>())
        .collect()
}

fn socket(line: &str) -> Option<Socket> {
    let mut fields = line.split_whitespace();
    let local = address(fields.nth(1)?)?;
    let remote = address(fields.next()?)?;
    let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    let uid = fields.nth(3)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Socket { local, remote, state, uid, inode })
}

/// `0100007F:1F90`: words of four bytes in the host's order, and a port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let words: Option<Vec<[u8; 4]>> = ip
        .as_bytes()
        .chunks(8)
        .map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok().map(u32::to_ne_bytes))
        .collect();
    let ip = match words?.as_slice() {
        [word] => IpAddr::V4(Ipv4Addr::from(*word)),
        [a, b, c, d] => {
            let bytes: [u8; 16] = [*a, *b, *c, *d].concat().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// The processes that have one of the sockets, as far as we may look: pid and name.
pub fn holders(inodes: &[u64]) -> Vec<(u32, String)> {
    let wanted: Vec<OsString> = inodes.iter().map(|inode| format!("socket:[{inode}]").into()).collect();
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let has = |pid: u32| {
        let Ok(mut fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        fds.any(|fd| {
            fd.is_ok_and(|fd| {
                fs::read_link(fd.path()).is_ok_and(|link| wanted.contains(&link.into_os_string()))
            })
        })
    };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<(u32, String)> = pids.filter(|pid| has(*pid)).map(|pid| (pid, name(pid))).collect();
    found.sort();
    found
}

/// A process's parent, its parent, and so on, as far as /proc tells.
pub fn ancestors(pid: u32) -> Vec<u32> {
    let parent = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        parent.trim().parse().ok().filter(|parent| *parent != 0)
    };
    std::iter::successors(parent(&pid), parent).collect()
}

/// A process's name. It may be any bytes, which are to make no lines of their own where it is shown.
pub fn name(pid: u32) -> String {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    // The last line end is the kernel's.
    let comm = comm.strip_suffix(b"\n").unwrap_or(&comm);
    plain_name(comm)
}

/// The capabilities that a process has in effect; `None` where /proc does not tell.
pub fn capabilities(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(effective.trim(), 16).ok()
}

/// The most that is read of a process's mappings, bytes. How long their names are is the process's choice; as many as the kernel allows
/// (vm.max_map_count: 65530) with names of ordinary length are fewer.
const MAPS: u64 = 8 << 20;

/// A process's mappings, the first of them where they are many; none where we may not look.
pub fn mappings(pid: u32) -> impl Iterator<Item = String> {
    let file = File::open(format!("/proc/{pid}/maps")).ok();
    let lines = file.map(|file| BufReader::new(file.take(MAPS)).split(b'\n'));
    lines.into_iter().flatten().map_while(Result::ok).map(|line| String::from_utf8_lossy(&line).into_owned())
}

/// Whether one of a process's mappings is like this; `None` where we may not look, or not as far.
fn is_mapped(pid: u32, is_it: impl Fn(&str) -> bool) -> Option<bool> {
    let (mut read, mut seen) = (0, false);
    for line in mappings(pid) {
        if is_it(&line) {
            return Some(true);
        }
        (read, seen) = (read + line.len() as u64 + 1, true);
    }
    (seen && read < MAPS).then_some(false)
}

/// Whether the library is loaded in a process; `None` where we may not look.
pub fn has_library(pid: u32) -> Option<bool> {
    is_mapped(pid, |line| line.contains("libshunpike"))
}

/// Whether a process has a libc of its own, glibc or musl: then the preloaded library is the way in, and no other.
pub fn has_libc(pid: u32) -> bool {
    is_mapped(pid, |line| ["/libc.so", "/libc-2.", "/ld-musl-"].iter().any(|name| line.contains(name)))
        == Some(true)
}

/// Whether a process has an arena of Shunpike's; `None` where we may not look.
pub fn has_arena(pid: u32) -> Option<bool> {
    is_mapped(pid, |line| line.contains("/memfd:shunpike-arena"))
}

/// Whether Shunpike works in a process that no library can be loaded into, by `run --entry=syscall`. Its code has no name in the process; the
/// arena has, from the first busy connection on. `None` where it may be and has had no such connection yet, or where we may not look.
pub fn has_entry(pid: u32) -> Option<bool> {
    if has_arena(pid)? {
        return Some(true);
    }
    // A container's device sets the socket alone.
    (!has_variable(pid, "SHUNPIKE_SOCKET")? || !has_variable(pid, "SHUNPIKE_INJECT")?).then_some(false)
}

/// Whether a process was started with a variable, and not an empty one; `None` where we may not look.
pub fn has_variable(pid: u32, wanted: &str) -> Option<bool> {
    let found = variables(pid, wanted)?;
    Some(found.iter().any(|(name, value)| name == wanted && !value.is_empty()))
}

/// Whether a process is in a pid namespace below ours, as a container's are.
pub fn is_in_a_container(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() > 1)
}

/// The most that is read of an environment. The kernel lets a program start with 6 MiB; but where it lies is the process's own word
/// (PR_SET_MM), and any size.
const ENVIRONMENT: u64 = 8 << 20;

/// A process's environment as it was started with, each variable ended by a NUL; `None` where we may not look.
pub fn environment(pid: u32) -> Option<Vec<u8>> {
    let mut environment = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRONMENT).read_to_end(&mut environment).ok()?;
    Some(environment)
}

/// Whether a user is one that a process is (real, effective, saved), or may have files as.
pub fn is_of(pid: u32, uid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uids.is_some_and(|uids| uids.split_whitespace().any(|word| word.parse() == Ok(uid)))
}

/// The variables of a process that it was started with and that begin with `prefix`; `None` where we may not look.
pub fn variables(pid: u32, prefix: &str) -> Option<Vec<(String, String)>> {
    let environment = environment(pid)?;
    let variables = environment.split(|byte| *byte == 0).filter_map(|variable| {
        let (name, value) = std::str::from_utf8(variable).ok()?.split_once('=')?;
        name.starts_with(prefix).then(|| (name.to_owned(), value.to_owned()))
    });
    Some(variables.collect())
}

/// Sockets by their inodes, each network namespace's table read once.
#[derive(Default)]
pub struct Tables(HashMap<String, HashMap<u64, Socket>>);

impl Tables {
    /// What the kernel says of a process's socket.
    pub fn socket(&mut self, pid: u32, inode: u64) -> Option<Socket> {
        // Where it is not told which namespace a process is in, it has a table of its own.
        let namespace = fs::read_link(format!("/proc/{pid}/ns/net"));
        let name = namespace.map_or_else(|_| pid.to_string(), |link| link.display().to_string());
        let table = self.0.entry(name).or_insert_with(|| {
            sockets(&pid.to_string()).into_iter().map(|socket| (socket.inode, socket)).collect()
        });
        table.get(&inode).copied()
    }
}

/// The inode of the socket that a process has as `fd`, where we may look into it.
pub fn inode(pid: u32, fd: u32) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    #[test]
    fn our_own_listener_is_found_and_known_as_ours() {
        for bound in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(bound) else { continue };
            let address = listener.local_addr().expect("bound");
            let found =
                sockets("self").into_iter().find(|s| s.local == address && s.state == LISTEN).expect(bound);
            assert_eq!(found.uid, rustix::process::getuid().as_raw());
            let ours = std::process::id();
            assert!(holders(&[found.inode]).iter().any(|(pid, _)| *pid == ours), "{bound}");
            assert_eq!(inode(ours, listener.as_raw_fd().cast_unsigned()), Some(found.inode));
            let seen = Tables::default().socket(ours, found.inode).expect(bound);
            assert_eq!((seen.local, seen.state), (address, LISTEN));
        }
    }

    #[test]
    fn a_name_is_in_one_line() {
        let named = |own: &'static std::ffi::CStr| {
            let read = move || {
                rustix::thread::set_name(own).expect("a name");
                name(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
            };
            std::thread::spawn(read).join().expect("a thread")
        };
        assert_eq!(named(c"x\nyes broker "), "x?yes broker ");
        assert_eq!(named(c"\xff\x1bx\n"), "\u{fffd}?x?");
        assert_eq!(name(u32::MAX), "");
    }

    #[test]
    fn addresses_are_in_the_hosts_order() {
        let of = |text: &str| address(text).map(|address| address.to_string());
        if cfg!(target_endian = "little") {
            assert_eq!(of("0100007F:1F90").as_deref(), Some("127.0.0.1:8080"));
            assert_eq!(of("00000000000000000000000001000000:0050").as_deref(), Some("[::1]:80"));
        }
        assert_eq!(of("0100007F"), None);
        assert_eq!(of("01:xx"), None);
    }
}
