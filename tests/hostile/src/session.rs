//! A session with the broker, as the library has one; and what the broker hands out with it.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::path::Path;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::time::Timespec;
use shunpike_shm::arena::Arena;
use shunpike_shm::pages::PAGE;
use shunpike_shm::{Region, region};
use shunpike_wire::clc::handshake::LocalDevice;
use shunpike_wire::session::{CONTROL, ConnId, FromBroker, MAX, ToBroker, VERSION};

/// What a link group shares: the page, and the victim's doorbells.
pub struct Group {
    /// The link page, mapped writable.
    pub page: Region,
    /// Its memfd.
    pub page_fd: OwnedFd,
    /// Doorbells that came with it.
    pub bells: Vec<OwnedFd>,
}

/// A session.
pub struct Session {
    socket: OwnedFd,
    _arena: Arena,
    /// Our doorbell, which the victim rings.
    pub bell: OwnedFd,
    /// Session page and knob page.
    pub pages: Vec<OwnedFd>,
    /// The device, as the broker announced it.
    pub device: LocalDevice,
    /// Link groups met so far.
    pub groups: HashMap<u32, Group>,
    next: u32,
}

impl Session {
    /// Greets the broker. Errors: what it said or did instead of a welcome.
    pub fn open(path: &Path) -> Result<Self, String> {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|e| format!("socket: {e}"))?;
        let address = SocketAddrUnix::new(path).map_err(|e| format!("broker's address: {e}"))?;
        rustix::net::connect(&socket, &address).map_err(|e| format!("connect to the broker: {e}"))?;
        let arena = Arena::create(std::process::id()).map_err(|e| e.to_string())?;
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|e| e.to_string())?;
        let hello = ToBroker::Hello {
            control: CONTROL,
            version: VERSION,
            doorbells: 1,
            comm: *b"hostile-peer\0\0\0\0",
        };
        send(&socket, &hello, &[arena.fd().as_fd(), bell.as_fd()]).map_err(|e| format!("hello: {e}"))?;
        let (message, pages) = receive(&socket, 10_000)?.ok_or("no welcome")?;
        let FromBroker::Welcome(welcome) = message else { return Err(format!("no welcome: {message:?}")) };
        let device = LocalDevice::new(&welcome, rustix::system::uname().nodename().to_bytes());
        let groups = HashMap::new();
        Ok(Self { socket, _arena: arena, bell, pages, device, groups, next: 0 })
    }

    /// An id for a new connection.
    pub fn fresh_id(&mut self) -> ConnId {
        self.next += 1;
        ConnId(1 << 32 | u64::from(self.next))
    }

    /// Says something. Errors: the broker ended the session.
    pub fn say(&self, message: &ToBroker, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        send(&self.socket, message, fds)
    }

    /// The next message within `ms`, if there is one. Errors: the session is over.
    pub fn hear(&self, ms: i64) -> Result<Option<(FromBroker, Vec<OwnedFd>)>, String> {
        receive(&self.socket, ms)
    }

    /// Enters the link group `link` with what came in its first contact.
    pub fn enter(&mut self, link: u32, fds: Vec<OwnedFd>) -> Result<(), String> {
        let mut fds = fds.into_iter();
        let page_fd = fds.next().ok_or("no link page")?;
        region::verify(page_fd.as_fd(), PAGE).map_err(|e| e.to_string())?;
        let page = Region::map(page_fd.as_fd(), PAGE).map_err(|e| e.to_string())?;
        self.groups.insert(link, Group { page, page_fd, bells: fds.collect() });
        Ok(())
    }
}

fn send(socket: &OwnedFd, message: &ToBroker, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut bytes = [0; MAX];
    let len = message.encode(&mut bytes).map_err(|_| Errno::MSGSIZE)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes[..len])], &mut control, SendFlags::NOSIGNAL).map(drop)
}

fn receive(socket: &OwnedFd, ms: i64) -> Result<Option<(FromBroker, Vec<OwnedFd>)>, String> {
    let timeout = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    if poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)).map_err(|e| e.to_string())? == 0 {
        return Ok(None);
    }
    let mut bytes = [0; MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    );
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let fds = rights.flatten().collect();
    let len = got.map_err(|e| format!("the broker ended the session: {e}"))?.bytes;
    let message =
        FromBroker::decode(&bytes[..len]).map_err(|e| format!("{len} bytes from the broker: {e}"))?;
    Ok(Some((message, fds)))
}
