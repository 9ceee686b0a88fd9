//! `chk HOST:PORT`: whether a connection there would get a lane, without making one unless asked to.

mod reach;

use super::Broker;
use super::presence::Presence;
use super::table::{Table, print, print_json};
use crate::args::Format;
use crate::error::Error;
use crate::kernel::{self, Socket};
use crate::socket;
use reach::{Made, Namespace};
use serde_json::json;
use shunpike_broker::report::{Check, Info};
use shunpike_broker::text::is_order;
use shunpike_broker::what;
use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One thing that has to be so.
struct Finding {
    name: &'static str,
    /// `None`: cannot be seen from here.
    is_so: Option<bool>,
    /// What was found.
    text: String,
    /// What to do where it is not so.
    advice: Cow<'static, str>,
}

/// Looks at everything that decides, and says it. Whether there would be a lane is the exit status.
pub fn check(
    target: &str,
    broker: Result<Broker, Error>,
    connects: bool,
    format: &Format,
) -> Result<bool, Error> {
    let addresses = resolve(target)?;
    // The one of several addresses at which somebody listens is the one that a program gets to.
    let own = Namespace::own();
    let address = addresses.iter().find(|address| !own.listeners(**address).is_empty()).or(addresses.first());
    let Some(address) = address.copied() else { return Err(unknown(target, "it has no address")) };
    let findings = findings(address, own, broker, connects);
    let verdict = verdict(&findings);
    show(target, address, &findings, verdict, format)?;
    Ok(verdict == Some(true))
}

/// Whether there would be a lane; `None` where who is at the other end is not known, or not whether Shunpike is in it.
fn verdict(findings: &[Finding]) -> Option<bool> {
    let fails = findings.iter().any(|finding| finding.is_so == Some(false));
    let is_reached = findings
        .iter()
        .any(|finding| ["library", "session"].contains(&finding.name) && finding.is_so == Some(true));
    if fails { Some(false) } else { is_reached.then_some(true) }
}

fn resolve(target: &str) -> Result<Vec<SocketAddr>, Error> {
    let found = target.to_socket_addrs().map_err(|error| unknown(target, &error.to_string()))?;
    Ok(found.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port())).collect())
}

fn unknown(target: &str, why: &str) -> Error {
    Error::Target { target: target.to_owned(), why: why.to_owned() }
}

fn findings(
    address: SocketAddr,
    own: Namespace,
    broker: Result<Broker, Error>,
    connects: bool,
) -> Vec<Finding> {
    // Kept to the end: the other end is to have it for as long as it is looked at.
    let mut made = connects.then(|| reach::connect(address));
    let (mut findings, place) = match &mut made {
        Some(made) => connected(address, made),
        None => looked_for(address, own),
    };
    let Some((namespace, sockets)) = place else { return findings };
    let Some(socket) = sockets.first() else { return findings };
    if !connects {
        findings.extend(reach::of_both_families(address, socket));
    }
    let inodes: Vec<u64> = sockets.iter().map(|socket| socket.inode).collect();
    let mut holders = kernel::holders(&inodes);
    // Any of them may accept the connection: those come first that can have a lane.
    holders.sort_by_cached_key(|(pid, _)| !Presence::is_in(*pid));
    let server = holders.first();
    findings.push(Finding {
        name: "listener",
        is_so: Some(true),
        text: match server {
            Some((pid, name)) => {
                let more = if holders.len() > 1 {
                    format!(" and {} more", holders.len() - 1)
                } else {
                    String::new()
                };
                format!("{name} (PID {pid}, uid {}){more}", socket.uid)
            }
            None => format!("a process of uid {}", socket.uid),
        },
        advice: "".into(),
    });
    if let Some((pid, name)) = server.filter(|(_, name)| reach::is_proxy(name)) {
        findings.push(Finding {
            name: "proxy",
            is_so: Some(false),
            text: format!(
                "{name} (PID {pid}) takes the connection, and makes another one of its own to the container"
            ),
            advice: "connect to the container's own address, or switch the engine's userland proxy off \
                     ('userland-proxy': false; docs/containers.md)"
                .into(),
        });
        return findings;
    }
    let Presence { is_so, text, advice } = Presence::in_all(&holders);
    findings.push(Finding { name: "library", is_so, text, advice: advice.into() });
    match broker {
        Ok(broker) => {
            if namespace.process != "self" {
                findings.push(between_namespaces(&broker));
            }
            findings.extend(of_broker(&broker, server.map(|(pid, _)| *pid), socket.uid));
        }
        Err(error) => findings.push(unasked(&error)),
    }
    findings
}

/// The broker gave no answer: as the error says it, which has what to do behind what is so.
fn unasked(error: &Error) -> Finding {
    let text = error.to_string();
    let (text, advice) = text.split_once("; ").unwrap_or((&text, "ask again"));
    Finding { name: "broker", is_so: Some(false), text: text.to_owned(), advice: advice.to_owned().into() }
}

/// Where somebody listens: at one socket, or at several that share an address (SO_REUSEPORT), of which any may take the connection.
type Place = Option<(Namespace, Vec<Socket>)>;

/// By the address: in this network namespace, else in another one of this host that has it.
fn looked_for(address: SocketAddr, own: Namespace) -> (Vec<Finding>, Place) {
    let here = this_host(address.ip());
    let is_here = here.is_so == Some(true);
    if is_here {
        let sockets = own.listeners(address);
        if !sockets.is_empty() {
            return (vec![here], Some((own, sockets)));
        }
        let nobody = Finding {
            name: "listener",
            is_so: Some(false),
            text: format!("nobody listens at {address} in this network namespace"),
            advice: "start the server; where a port is forwarded into a container, 'shunpike chk --connect' makes a connection and \
                     finds out who has it"
                .into(),
        };
        return (vec![here, nobody], None);
    }
    let all = Namespace::others();
    let mut with_address = all.into_iter().filter(|other| other.has(address.ip()));
    let Some(first) = with_address.next() else { return (vec![here], None) };
    let is_only = with_address.next().is_none();
    let inside = |text: String, is_so| Finding { name: "this host", is_so, text, advice: "".into() };
    let text = format!(
        "{} is an address of another network namespace of this host (that of PID {})",
        address.ip(),
        first.process
    );
    if !is_only {
        let text = format!("{text}, and of others: which one is meant, 'shunpike chk --connect' finds out");
        return (vec![inside(text, None)], None);
    }
    let sockets = first.listeners(address);
    if !sockets.is_empty() {
        return (vec![inside(text, Some(true))], Some((first, sockets)));
    }
    let nobody = Finding {
        name: "listener",
        is_so: Some(false),
        text: format!("nobody listens at {address} there"),
        advice: "start the server".into(),
    };
    (vec![inside(text, Some(true)), nobody], None)
}

/// By a connection that was made: whoever has its other end, through whatever translation of the address that is called.
fn connected(address: SocketAddr, made: &mut io::Result<Made>) -> (Vec<Finding>, Place) {
    let finding = |is_so, text: String, advice: &'static str| Finding {
        name: "connect",
        is_so,
        text,
        advice: advice.into(),
    };
    let peer = match made {
        Ok(made) => made.peer.take(),
        Err(error) => {
            let text = format!("no connection to {address}: {error}");
            let advice = "start the server, or let the connection through";
            return (vec![finding(Some(false), text, advice)], None);
        }
    };
    match peer {
        Some((namespace, sockets)) => {
            let text = match namespace.process.as_str() {
                "self" => {
                    format!("a connection to {address} was made; its other end is in this network namespace")
                }
                pid => format!(
                    "a connection to {address} was made; its other end is in another network namespace of this host (that of PID {pid})"
                ),
            };
            (vec![finding(Some(true), text, "")], Some((namespace, sockets)))
        }
        None => {
            let text = format!(
                "a connection to {address} was made; its other end is not seen on this host: it is elsewhere, another user's, or behind an \
                 address that hides ours"
            );
            (vec![finding(None, text, "")], None)
        }
    }
}

/// Whether the broker can match two ends in different network namespaces: by sequence numbers, or, for one user, by what both count.
fn between_namespaces(broker: &Broker) -> Finding {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let finding = |is_so, text: &str| {
        Finding {
        name: "namespaces",
        is_so,
        text: text.into(),
        advice: "give it CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN ('Which capabilities the broker needs' in docs/containers.md)".into(),
    }
    };
    let Ok(info) = broker.answer::<Info>(what::INFO, "") else {
        return finding(None, "the broker does not say what it sees");
    };
    let enters = kernel::capabilities(info.pid).map(|all| all & CAP_SYS_ADMIN != 0);
    match (info.privileged, info.private, enters) {
        (true, _, Some(true)) => {
            finding(Some(true), "the broker sees both ends' sequence numbers, in any network namespace")
        }
        (_, true, _) => {
            finding(Some(true), "the broker serves one user, and matches by addresses and byte counts")
        }
        (true, false, None) => {
            finding(None, "whether the broker may look into other network namespaces cannot be seen")
        }
        _ => finding(Some(false), "the broker does not see sequence numbers in other network namespaces"),
    }
}

/// Whether an address is one of this network namespace: only then can the peer be on this host.
fn this_host(ip: IpAddr) -> Finding {
    let any: SocketAddr = if ip.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    // The kernel chooses its own address for a way to itself; nothing is sent.
    let own = UdpSocket::bind(any).and_then(|socket| {
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    let is_own = ip.is_loopback() || ip.is_unspecified() || own.is_ok_and(|own| own.ip() == ip);
    Finding {
        name: "this host",
        is_so: Some(is_own),
        text: if is_own {
            format!("{ip} is an address of this host")
        } else {
            format!("{ip} is no address of this host, nor of a network namespace of it that is seen from here")
        },
        advice: "other hosts are reached by TCP only; where it may be a container's, or a port that is forwarded to one, \
                 'shunpike chk --connect' (as root) makes a connection and finds out"
            .into(),
    }
}

fn of_broker(broker: &Broker, pid: Option<u32>, uid: u32) -> Vec<Finding> {
    let mut findings = Vec::new();
    // One of which the broker does not tell has no session.
    let theirs = pid.and_then(|pid| broker.pid_of(pid).ok()).unwrap_or(0);
    match broker.answer::<Check>(what::CHECK, &format!("{theirs} {uid}")) {
        Ok(check) => {
            // Of a process that is not seen the broker was not asked.
            let session = pid.and(check.session);
            if let Some(whose) = socket::foreign(&broker.socket) {
                findings.push(Finding {
                    name: "owner",
                    is_so: Some(false),
                    text: whose,
                    advice: "use a broker of your own or root's: programs say nothing to this one".into(),
                });
            }
            findings.extend(two_brokers());
            findings.push(same_broker(&broker.socket, pid, session));
            if let Some(version) = check.other_version {
                findings.push(Finding {
                    name: "version",
                    is_so: Some(false),
                    text: format!(
                        "its library's lanes are of version {version}, which the broker does not know"
                    ),
                    advice: "restart the program, or the broker: whichever runs the older version".into(),
                });
            }
            findings.push(Finding {
                name: "device",
                is_so: Some(check.active),
                text: format!("loopback-ism is {}active", if check.active { "" } else { "not " }),
                advice: "'shunpike device set active on'".into(),
            });
            let own = rustix::process::getuid().as_raw();
            let may = if check.permitted { "may" } else { "may not" };
            findings.push(Finding {
                name: "policy",
                is_so: Some(check.permitted),
                text: format!("you (uid {own}) and uid {uid} {may} be peers: {}", check.peers),
                advice: check.advice.into(),
            });
            let text = match session {
                Some(true) => "the process has a session with the broker",
                Some(false) => {
                    "the process has had nothing to say to the broker yet; its first busy connection will"
                }
                None if pid.is_none() => {
                    "which process it is, and whether it has a session, is not seen from here"
                }
                None => "whether the process has a session is not yours to know",
            };
            findings.push(Finding {
                name: "session",
                is_so: session.filter(|has| *has),
                text: text.into(),
                advice: "".into(),
            });
        }
        Err(error) => findings.push(unasked(&error)),
    }
    findings
}

/// Whether the process uses the broker at `ours`. One that has a session there does, whatever is in its environment, which
/// programs overwrite to show a title.
fn same_broker(ours: &Path, pid: Option<u32>, session: Option<bool>) -> Finding {
    let variables = pid.and_then(|pid| kernel::variables(pid, "SHUNPIKE_"));
    let variable = |wanted: &str| {
        let found = variables.iter().flatten().find(|(name, value)| name == wanted && !value.is_empty());
        found.map(|(_, path)| PathBuf::from(path))
    };
    let (named, preferred) = (variable(socket::VARIABLE), variable(socket::PREFERRED));
    // Where it goes when it next has something to ask.
    let theirs = preferred.filter(|path| pid.is_some_and(|pid| is_there(pid, path))).or(named);
    let loaded = || pid.and_then(kernel::has_library) == Some(true);
    let both = || format!("both ends use the broker at {}", ours.display());
    let (is_so, text) = match (&variables, theirs) {
        _ if session == Some(true) => (Some(true), both()),
        (Some(_), Some(path)) if pid.is_some_and(|pid| is_same(pid, &path, ours)) => (Some(true), both()),
        (Some(_), Some(path)) => {
            let which = if path == ours {
                "another broker of that name, in its own mount namespace,".to_owned()
            } else {
                format!("the broker at {}", path.display())
            };
            (Some(false), format!("it uses {which} you the one at {}", ours.display()))
        }
        (Some(_), None) => {
            ((!loaded()).then_some(false), format!("it names no broker; yours is at {}", ours.display()))
        }
        (None, _) => (None, format!("which broker it uses cannot be seen; yours is at {}", ours.display())),
    };
    Finding {
        name: "broker",
        is_so,
        text,
        advice: "start both with the same SHUNPIKE_SOCKET (or --socket)".into(),
    }
}

/// A process's view of a path.
fn seen_by(pid: u32, path: &Path) -> PathBuf {
    let mut seen = PathBuf::from(format!("/proc/{pid}/root"));
    seen.push(path.strip_prefix("/").unwrap_or(path));
    seen
}

fn is_there(pid: u32, path: &Path) -> bool {
    std::fs::metadata(seen_by(pid, path)).is_ok()
}

/// Whether a path is to a process what `ours` is to us: one name can be two sockets in two mount namespaces, and two names
/// one. Where we may not look, the names decide.
fn is_same(pid: u32, path: &Path, ours: &Path) -> bool {
    let id = |path: &Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    match (id(&seen_by(pid, path)), id(ours)) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        _ => path == ours,
    }
}

/// Both default brokers serve: programs are at one or the other.
fn two_brokers() -> Option<Finding> {
    let (system, private) = (Path::new(socket::SYSTEM), socket::private());
    let both = socket::answers(system) && socket::owned_by_us(&private) && socket::answers(&private);
    both.then(|| Finding {
        name: "brokers",
        is_so: None,
        text: format!(
            "two serve here: the system's at {}, and a private one at {}; there is no lane between their programs",
            system.display(),
            private.display()
        ),
        advice: "".into(),
    })
}

fn show(
    target: &str,
    address: SocketAddr,
    findings: &[Finding],
    verdict: Option<bool>,
    format: &Format,
) -> Result<(), Error> {
    if format.json {
        let one = |finding: &Finding| json!({ "name": finding.name, "is_so": finding.is_so, "text": finding.text, "advice": finding.advice });
        let findings: Vec<_> = findings.iter().map(one).collect();
        return print_json(&json!({
            "target": target, "address": address.to_string(), "lane": verdict, "findings": findings,
        }));
    }
    let mut table = Table::headless();
    for finding in findings {
        let mark = finding.is_so.map_or("?", |is_so| if is_so { "yes" } else { "no" });
        table.row([mark, finding.name, &in_one_line(&finding.text)]);
    }
    table.print()?;
    if verdict.is_none() {
        let is_found = findings.iter().any(|finding| finding.name == "listener");
        return print(if is_found {
            "\nNot known: whether the server is under Shunpike is not seen from here; ask as its user, or as root"
        } else {
            "\nNot known: who has the other end is not seen from here"
        });
    }
    if verdict == Some(true) {
        return print(
            "\nSuccess, using SMC-D: a program that you start with 'shunpike run' gets a lane there, once it is busy",
        );
    }
    print("\nFailed (TCP fallback), reasons:")?;
    let failed = findings.iter().filter(|finding| finding.is_so == Some(false));
    failed
        .into_iter()
        .try_for_each(|finding| print(&format!("  {}: {}", in_one_line(&finding.text), finding.advice)))
}

/// Paths and names of other users' processes are in it, and make no lines of their own.
fn in_one_line(text: &str) -> String {
    text.replace(is_order, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listening(local: &str) -> Socket {
        let local = local.parse().expect("an address");
        Socket { local, remote: ([0, 0, 0, 0], 0).into(), state: kernel::LISTEN, uid: 0, inode: 1 }
    }

    #[test]
    fn the_exact_address_comes_before_the_wildcard() {
        let sockets = [listening("0.0.0.0:80"), listening("127.0.0.1:80"), listening("[::]:81")];
        let of = |sockets: &[Socket], address: &str| {
            let found = reach::listeners(sockets, address.parse().expect("an address"));
            found.first().map(|socket| socket.local.to_string())
        };
        let at = |address: &str| of(&sockets, address);
        assert_eq!(at("127.0.0.1:80").as_deref(), Some("127.0.0.1:80"));
        assert_eq!(at("127.0.0.2:80").as_deref(), Some("0.0.0.0:80"));
        assert_eq!(at("127.0.0.1:81").as_deref(), Some("[::]:81"), "both families");
        assert_eq!(at("127.0.0.1:82"), None);
        assert_eq!(at("[::1]:80"), None, "0.0.0.0 is of IPv4 alone");
        assert_eq!(at("[::1]:81").as_deref(), Some("[::]:81"));
        assert_eq!(at("[::]:81").as_deref(), Some("[::]:81"));
        let both = [listening("[::]:80"), listening("0.0.0.0:80"), listening("[::1]:80")];
        assert_eq!(of(&both, "127.0.0.1:80").as_deref(), Some("0.0.0.0:80"), "its own family's first");
        assert_eq!(of(&both, "0.0.0.0:80").as_deref(), Some("0.0.0.0:80"));
        assert_eq!(of(&both, "[::]:80").as_deref(), Some("[::1]:80"));
        assert_eq!(
            of(&[listening("[::ffff:127.0.0.1]:80")], "127.0.0.1:80").as_deref(),
            Some("[::ffff:127.0.0.1]:80")
        );
        let established = Socket { state: 1, ..sockets[1] };
        assert!(reach::listeners(&[established], established.local).is_empty());
        let shared = [listening("127.0.0.1:80"), listening("0.0.0.0:80"), listening("127.0.0.1:80")];
        assert_eq!(reach::listeners(&shared, shared[0].local).len(), 2, "any of them takes the connection");
    }

    /// It was a success for servers that nobody had put under Shunpike.
    #[test]
    fn only_a_server_that_is_known_to_be_reached_is_a_success() {
        let finding = |(name, is_so)| Finding { name, is_so, text: String::new(), advice: "".into() };
        let of = |more: &[(&'static str, Option<bool>)]| {
            let found = [("listener", Some(true)), ("broker", None), ("policy", Some(true))];
            verdict(&found.iter().chain(more).copied().map(finding).collect::<Vec<_>>())
        };
        assert_eq!(of(&[("library", None), ("session", None)]), None);
        assert_eq!(of(&[("library", Some(true)), ("session", None)]), Some(true));
        assert_eq!(of(&[("library", None), ("session", Some(true))]), Some(true));
        assert_eq!(of(&[("library", Some(false)), ("session", Some(true))]), Some(false));
    }

    #[test]
    fn whether_a_listener_of_ipv6_takes_ipv4_is_not_known() {
        let finding = |address: &str, local: &str| {
            reach::of_both_families(address.parse().expect("an address"), &listening(local))
        };
        let unknown = finding("127.0.0.1:81", "[::]:81").expect("a finding");
        assert!(unknown.is_so.is_none() && unknown.text.contains("IPV6_V6ONLY"), "{}", unknown.text);
        for (address, local) in [
            ("[::1]:81", "[::]:81"),
            ("127.0.0.1:81", "0.0.0.0:81"),
            ("127.0.0.1:81", "[::ffff:127.0.0.1]:81"),
        ] {
            assert!(finding(address, local).is_none(), "{address} {local}");
        }
    }

    #[test]
    fn what_the_broker_did_not_answer_is_said_as_it_is() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let tried = vec![socket::Tried::new("/run/x".into(), denied)];
        let Finding { text, advice, .. } = unasked(&Error::NoBroker { tried });
        assert_eq!(text, "no broker answers at /run/x (permission denied)");
        assert!(advice.contains("as root"), "{advice}");
    }

    #[test]
    fn loopback_is_here_and_the_documentation_is_not() {
        assert_eq!(this_host([127, 9, 9, 9].into()).is_so, Some(true));
        assert_eq!(this_host([192, 0, 2, 1].into()).is_so, Some(false));
    }
}
