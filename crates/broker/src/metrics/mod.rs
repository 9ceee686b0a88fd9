//! Metrics over HTTP, where the operator asks for them: OpenMetrics text, made of the same sums as the tools' answers.
//!
//! A scrape costs the broker one round over the arenas, in turns, at most so many times a second however many ask; programs are not
//! touched. Sockets are non-blocking, requests and answers bounded: a slow scraper keeps itself waiting.

mod http;
mod text;

use crate::address::Address;
use crate::clock;
use crate::error::BrokerError;
use crate::report::{Info, Stats, Sysctl};
use crate::runtime;
use http::{Scrape, Step};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::HashMap;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Ids of scrapes in the event loop have this bit; the listener's has nothing else.
pub const LISTENER: u64 = 1 << 63;
/// Scrapers served at a time.
const MOST: usize = 16;
/// How long one may take for its request and for reading the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody is accepted after descriptors ran out.
const PAUSE: Duration = Duration::from_millis(100);
/// A text is good for so long.
const FRESH: Duration = Duration::from_millis(250);

/// What the metrics are made of.
pub struct Figures {
    /// The broker and its device.
    pub info: Info,
    /// Sums since the broker began.
    pub stats: Stats,
    /// Settings.
    pub settings: Vec<Sysctl>,
    /// Connection ends that are open: on lanes, and on TCP.
    pub open: [u64; 2],
}

/// The server's own counts.
#[derive(Copy, Clone, Default, Debug)]
struct Served {
    scrapes: u64,
    turned_away: u64,
    late: u64,
}

/// A place where metrics are served.
pub struct Metrics {
    address: Address,
    listener: OwnedFd,
    scrapes: HashMap<u64, Scrape>,
    next: u64,
    served: Served,
    text: Option<(Instant, Rc<str>)>,
    paused_until: Option<Instant>,
}

impl Metrics {
    /// Listens at `address`, with the listener in `epoll`.
    pub fn new(address: Address, epoll: &OwnedFd) -> Result<Self, BrokerError> {
        let failed = |error| BrokerError::Metrics { address: address.to_string(), error };
        let listener: OwnedFd = match &address {
            Address::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                listener.into()
            }
            Address::Unix(path) => {
                // Whoever could put a link there could choose whose mode is changed.
                runtime::check_directory(path.parent().unwrap_or(Path::new("/")))?;
                listen(path).map_err(failed)?
            }
        };
        epoll::add(epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)
            .map_err(|errno| failed(errno.into()))?;
        tracing::info!(%address, "metrics");
        Ok(Self {
            address,
            listener,
            scrapes: HashMap::new(),
            next: LISTENER + 1,
            served: Served::default(),
            text: None,
            paused_until: None,
        })
    }

    /// Something happened at `id`. Whether figures are wanted: see [`Metrics::tell`].
    pub fn serve(&mut self, id: u64, epoll: &OwnedFd) -> bool {
        if id == LISTENER {
            self.accept(epoll);
            return false;
        }
        let Some(scrape) = self.scrapes.get_mut(&id) else { return false };
        let step = scrape.go_on();
        if step != Step::Asks || scrape.awaits {
            self.take(id, step, epoll);
            return false;
        }
        self.served.scrapes += 1;
        if let Some((made, text)) = &self.text
            && clock::since(*made) < FRESH
        {
            let step = scrape.answer(text);
            self.take(id, step, epoll);
            return false;
        }
        scrape.awaits = true;
        // Nothing that it says is read meanwhile.
        self.listen_to(id, EventFlags::empty(), epoll);
        self.scrapes.values().filter(|scrape| scrape.awaits).count() == 1
    }

    /// Answers those who wait for these figures.
    pub fn tell(&mut self, figures: &Figures, epoll: &OwnedFd) {
        let text: Rc<str> = text::of(figures, self.served).into();
        let waiting = self.scrapes.iter_mut().filter(|(_, scrape)| scrape.awaits);
        let steps: Vec<(u64, Step)> = waiting.map(|(id, scrape)| (*id, scrape.answer(&text))).collect();
        self.text = Some((clock::now(), text));
        steps.into_iter().for_each(|(id, step)| self.take(id, step, epoll));
    }

    fn take(&mut self, id: u64, step: Step, epoll: &OwnedFd) {
        match step {
            Step::Reads | Step::Asks => {}
            Step::Writes => self.listen_to(id, EventFlags::OUT, epoll),
            Step::Over => self.end(id, epoll),
        }
    }

    fn listen_to(&mut self, id: u64, flags: EventFlags, epoll: &OwnedFd) {
        let Some(scrape) = self.scrapes.get(&id) else { return };
        if epoll::modify(epoll, scrape.as_fd(), EventData::new_u64(id), flags).is_err() {
            self.end(id, epoll);
        }
    }

    /// When a scraper has to be done.
    pub fn deadline(&self) -> Option<Instant> {
        self.scrapes.values().map(|scrape| scrape.until).chain(self.paused_until).min()
    }

    /// Ends what takes too long.
    pub fn keep_time(&mut self, now: Instant, epoll: &OwnedFd) {
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.listen_for(EventFlags::IN, epoll);
        }
        let late: Vec<u64> = self.scrapes.iter().filter(|(_, s)| s.until <= now).map(|(id, _)| *id).collect();
        for id in late {
            self.served.late += 1;
            self.end(id, epoll);
        }
    }

    fn accept(&mut self, epoll: &OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // One a turn, so that programs have theirs; level-triggered, the next is not forgotten.
        let socket = match rustix::net::accept_with(&self.listener, flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            // Descriptors or memory: the listener would have us spin.
            Err(_) => {
                self.paused_until = Some(clock::now() + PAUSE);
                return self.listen_for(EventFlags::empty(), epoll);
            }
        };
        if self.scrapes.len() >= MOST {
            // The one that has had its place for longest: who asks at once and reads the answer needs none for long.
            self.served.turned_away += 1;
            let oldest = self.scrapes.iter().min_by_key(|(_, scrape)| scrape.until).map(|(id, _)| *id);
            oldest.into_iter().for_each(|id| self.end(id, epoll));
        }
        let id = self.next;
        self.next = (self.next + 1) | LISTENER;
        if epoll::add(epoll, &socket, EventData::new_u64(id), EventFlags::IN).is_ok() {
            self.scrapes.insert(id, Scrape::new(socket, clock::now() + PATIENCE));
        }
    }

    fn listen_for(&self, flags: EventFlags, epoll: &OwnedFd) {
        if let Err(errno) = epoll::modify(epoll, &self.listener, EventData::new_u64(LISTENER), flags) {
            tracing::error!(%errno, "metrics");
        }
    }

    fn end(&mut self, id: u64, epoll: &OwnedFd) {
        if let Some(scrape) = self.scrapes.remove(&id) {
            let _ = epoll::delete(epoll, scrape.as_fd());
        }
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A stream socket at `path`, in the place of one that nobody serves any more.
fn listen(path: &Path) -> std::io::Result<OwnedFd> {
    if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(std::io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    // As open as a port of the loopback address: what is told are sums.
    rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(0o666))?;
    rustix::net::listen(&listener, MOST as i32)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_port_or_a_path() {
        assert_eq!("127.0.0.1:9477".parse(), Ok(Address::Tcp(([127, 0, 0, 1], 9477).into())));
        assert_eq!("unix:/run/m.sock".parse(), Ok(Address::Unix("/run/m.sock".into())));
        for text in ["[::1]:9477", "unix:/run/m.sock"] {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()).as_deref(), Ok(text));
        }
        for wrong in ["9477", "localhost", "127.0.0.1", "unix:", "unix:m.sock", "/run/m.sock", ""] {
            assert!(wrong.parse::<Address>().unwrap_err().contains("unix:/PATH"), "{wrong}");
        }
    }

    #[test]
    fn a_socket_that_somebody_serves_is_not_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.sock");
        let first = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
        drop(first);
        listen(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(listen(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
