mod stream;

use super::*;
use crate::conformance::{self, Fixture};
use rustix::fd::{AsFd, OwnedFd};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use std::fs::File;
use std::process::Command;

#[test]
fn only_providers_that_keep_writes_in_order_are_taken() {
    assert_eq!(Provider::named("tcp"), Ok(Provider::Tcp));
    assert_eq!(Provider::named("verbs"), Ok(Provider::Verbs));
    let efa = Provider::named("efa").unwrap_err().to_string();
    assert!(efa.contains("any order"), "{efa}");
    assert!(Provider::named("cxi").is_err());
}

/// Where libfabric is not installed there is nothing to be tested. The job that installs what tests need brings it (ci/deps).
fn is_missing() -> bool {
    match Library::load() {
        Ok(_) => false,
        Err(why) => {
            eprintln!("skipped: {why}");
            true
        }
    }
}

fn open(address: &str) -> Libfabric {
    let local = SocketAddr::new(address.parse().expect("an address"), 0);
    Libfabric::open(Provider::Tcp, local).expect("libfabric's provider tcp")
}

#[test]
fn tcp_conforms_over_loopback() {
    if is_missing() {
        return;
    }
    for address in ["127.0.0.1", "::1"] {
        let at = SocketAddr::new(address.parse().unwrap(), 0);
        conformance::run(&Fixture { make: &|| [open(address), open(address)], at });
    }
}

#[test]
fn a_device_that_is_not_there_is_a_clear_error() {
    if is_missing() {
        return;
    }
    // An address for documentation (RFC 5737): no device of ours has it.
    let nowhere = "192.0.2.1:0".parse().unwrap();
    let Err(error) = Libfabric::open(Provider::Verbs, nowhere) else { panic!("a device for {nowhere}") };
    assert!(matches!(error, EngineError::Unfit(_)), "{error}");
}

/// An engine in a network namespace of its own: its calls are made there, as sockets belong to where they are made.
struct Hosted {
    engine: Libfabric,
    namespace: OwnedFd,
}

impl Hosted {
    fn enter(&self) {
        enter(&self.namespace);
    }
}

fn enter(namespace: &OwnedFd) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("allowed before");
}

macro_rules! there {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => { $(
        fn $name(&mut self, $($argument: $type),*) $(-> $result)? {
            self.enter();
            self.engine.$name($($argument),*)
        }
    )* };
}

impl Engine for Hosted {
    fn limits(&self) -> Limits {
        self.engine.limits()
    }

    there! {
        open_queue(vector: u32) -> Result<Queue, EngineError>;
        listen(at: SocketAddr) -> Result<SocketAddr, EngineError>;
        connect(to: SocketAddr, queue: Queue, hello: &[u8]) -> Result<Endpoint, EngineError>;
        accept(request: Request, queue: Queue, hello: &[u8]) -> Result<Endpoint, EngineError>;
        refuse(request: Request) -> Result<(), EngineError>;
        close(endpoint: Endpoint);
        register(memory: &Memory) -> Result<(Registered, RToken), EngineError>;
        deregister(memory: Registered) -> Result<(), EngineError>;
        write(endpoint: Endpoint, source: Source, target: Target, immediate: u32, context: u32) -> Result<(), EngineError>;
        poll(queue: Queue, news: &mut Vec<Completion>) -> Result<(), EngineError>;
        event() -> Option<Event>;
        wait(most: Duration) -> Result<(), EngineError>;
    }
}

/// This thread's network namespace.
fn namespace() -> OwnedFd {
    File::open("/proc/thread-self/ns/net").expect("it is there").into()
}

/// Two namespaces that a veth pair joins, as 10.198.0.1 and 10.198.0.2. Errors: why this machine cannot.
fn two_hosts() -> Result<[OwnedFd; 2], String> {
    let own = namespace();
    let made = [(); 2].map(|()| {
        // SAFETY: only this thread's network changes; it goes back below.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.map(|()| namespace())
    });
    enter(&own);
    let [Ok(first), Ok(second)] = made else {
        return Err("no network namespaces for this user".into());
    };
    // `ip` is a child of this thread, in whose namespace it works; the second one is named by our descriptor of it.
    let inside = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&second));
    enter(&first);
    let ip = |arguments: &str| {
        let status =
            Command::new("ip").args(arguments.split(' ')).status().map_err(|e| format!("ip: {e}"))?;
        if status.success() { Ok(()) } else { Err(format!("ip {arguments}: {status}")) }
    };
    let begin = || {
        ip(&format!("link add one type veth peer name two netns {inside}"))?;
        ip("address add 10.198.0.1/24 dev one")?;
        ip("link set one up")?;
        enter(&second);
        ip("address add 10.198.0.2/24 dev two")?;
        ip("link set two up")
    };
    let begun = begin();
    enter(&own);
    begun.map(|()| [first, second])
}

#[test]
fn tcp_conforms_between_two_network_namespaces() {
    if is_missing() {
        return;
    }
    let own = namespace();
    let hosts = match two_hosts() {
        Ok(hosts) => hosts,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let make = || {
        let [first, second] = hosts.each_ref();
        [(first, "10.198.0.1"), (second, "10.198.0.2")].map(|(namespace, address)| {
            enter(namespace);
            Hosted { engine: open(address), namespace: namespace.try_clone().expect("a descriptor") }
        })
    };
    conformance::run(&Fixture { make: &make, at: "10.198.0.2:0".parse().unwrap() });
    enter(&own);
}
