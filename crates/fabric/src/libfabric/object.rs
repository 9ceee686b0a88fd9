//! libfabric's objects, each closed when it is dropped, and the calls that make them.

use super::Provider;
use super::abi::{
    self, Cq, CqAttr, Domain, Ep, Eq, EqAttr, EqCmEntry, EqErrEntry, Fabric, Fid, Info, Mr, Pep,
};
use super::library::Library;
use crate::engine::{EngineError, Limits, MAX_HELLO};
use crate::memory::Memory;
use libc::{c_int, c_void};
use std::ffi::CString;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::ptr::{self, NonNull};

/// An object of libfabric's, ours alone. Closed on drop.
pub struct Object<T: Close> {
    at: NonNull<T>,
    library: Library,
}

/// How it ends.
pub trait Close {
    /// # Safety
    /// `at` is an object of this type, which nobody uses any more.
    unsafe fn close(at: *mut Self, library: Library);
}

macro_rules! closed_by_fid {
    ($($type:ty),*) => { $(
        impl Close for $type {
            unsafe fn close(at: *mut Self, _: Library) {
                // SAFETY: it begins with a Fid, whose table has `close`. What it answers (busy) could not be mended: the order of our fields
                // closes what is bound to an object before it.
                unsafe { ((*(*at.cast::<Fid>()).ops).close)(at.cast()) };
            }
        }
    )* };
}
closed_by_fid!(Fabric, Domain, Eq, Cq, Ep, Pep, Mr);

impl Close for Info {
    unsafe fn close(at: *mut Self, library: Library) {
        // SAFETY: libfabric made it, and all that it points to.
        unsafe { (library.freeinfo)(at) }
    }
}

impl<T: Close> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: it is ours alone.
        unsafe { T::close(self.at.as_ptr(), self.library) }
    }
}

impl<T: Close> Object<T> {
    /// What a call has made, if it has.
    fn made(what: &'static str, said: c_int, at: *mut T, library: Library) -> Result<Self, EngineError> {
        check(what, said)?;
        NonNull::new(at).map(|at| Self { at, library }).ok_or(EngineError::Failed(what, 0))
    }

    pub fn raw(&self) -> *mut T {
        self.at.as_ptr()
    }

    /// As the object that each begins with.
    pub fn fid(&self) -> *mut Fid {
        self.raw().cast()
    }
}

impl<T: Close> Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: ours, open, and changed by nobody but libfabric within its calls, during which this is borrowed no further.
        unsafe { self.at.as_ref() }
    }
}

/// What a call that gives zero or a negative error has said.
pub fn check(what: &'static str, said: c_int) -> Result<(), EngineError> {
    if said == 0 { Ok(()) } else { Err(EngineError::Failed(what, -said)) }
}

/// What an engine was made for.
#[derive(Copy, Clone)]
pub struct Options {
    pub provider: Provider,
    pub local: SocketAddr,
}

impl Options {
    /// What libfabric has for the local address, or for a peer from there.
    pub fn find(self, library: Library, peer: Option<SocketAddr>) -> Result<Object<Info>, EngineError> {
        // SAFETY: dupinfo of nothing makes a zeroed Info with all of its parts.
        let hints = unsafe { (library.dupinfo)(ptr::null()) };
        let hints = Object::made("fi_dupinfo", 0, hints, library)?;
        // SAFETY: parts that were just made, which nobody else has; names by malloc, as fi_freeinfo frees them.
        unsafe {
            let info = hints.raw();
            (*info).caps = abi::FI_MSG | abi::FI_RMA;
            (*info).mode = abi::FI_RX_CQ_DATA;
            (*(*info).ep_attr).kind = abi::FI_EP_MSG;
            (*(*info).tx_attr).msg_order = abi::FI_ORDER_WAW;
            (*(*info).rx_attr).msg_order = abi::FI_ORDER_WAW;
            let domain = (*info).domain_attr;
            (*domain).mode = abi::FI_RX_CQ_DATA;
            (*domain).mr_mode =
                abi::FI_MR_LOCAL | abi::FI_MR_VIRT_ADDR | abi::FI_MR_ALLOCATED | abi::FI_MR_PROV_KEY;
            (*domain).threading = abi::FI_THREAD_DOMAIN;
            (*domain).control_progress = abi::FI_PROGRESS_MANUAL;
            (*domain).data_progress = abi::FI_PROGRESS_MANUAL;
            let name = CString::new(self.provider.name()).expect("no zero in it");
            (*(*info).fabric_attr).prov_name = libc::strdup(name.as_ptr());
            if peer.is_some() {
                let (address, len) = sockaddr(self.local.ip(), 0);
                let copy = libc::malloc(len);
                if !copy.is_null() {
                    ptr::copy_nonoverlapping(address.as_ptr(), copy.cast(), len);
                    (*info).src_addr = copy;
                    (*info).src_addrlen = len;
                }
            }
        }
        let (address, flags) = peer.map_or((self.local, abi::FI_SOURCE), |peer| (peer, 0));
        let node = CString::new(address.ip().to_string()).expect("no zero in it");
        let service = CString::new(address.port().to_string()).expect("no zero in it");
        let mut found = ptr::null_mut();
        // SAFETY: C strings and an Info that stay for the call; what is found is ours to free.
        let said = unsafe {
            (library.getinfo)(
                abi::VERSION,
                node.as_ptr(),
                service.as_ptr(),
                flags,
                hints.raw(),
                &raw mut found,
            )
        };
        if said == -libc::ENODATA {
            let name = self.provider.name();
            return Err(EngineError::Unfit(format!("libfabric's provider {name} has nothing for {address}")));
        }
        Object::made("fi_getinfo", said, found, library)
    }

    /// Whether what was found can do what we need. Errors: `Unfit`.
    pub fn suits(self, info: &Info) -> Result<(), EngineError> {
        let unfit = |why: &str| {
            Err(EngineError::Unfit(format!("libfabric's provider {} {why}", self.provider.name())))
        };
        // SAFETY: fi_getinfo gives an Info with all of its parts.
        let (tx, domain) = unsafe { (&*info.tx_attr, &*info.domain_attr) };
        if tx.msg_order & (abi::FI_ORDER_WAW | abi::FI_ORDER_RMA_WAW) == 0 {
            return unfit("does not keep writes in order");
        }
        if domain.cq_data_size < 4 {
            return unfit("has no 32 bits of immediate");
        }
        Ok(())
    }
}

impl Object<Info> {
    /// One that an event has brought. `None`: it has brought none.
    pub fn of_info(at: *mut Info, library: Library) -> Option<Self> {
        NonNull::new(at).map(|at| Self { at, library })
    }

    pub fn open_fabric(&self) -> Result<Object<Fabric>, EngineError> {
        let mut fabric = ptr::null_mut();
        // SAFETY: attributes that libfabric has filled in.
        let said = unsafe { (self.library.fabric)(self.fabric_attr, &raw mut fabric, ptr::null_mut()) };
        Object::made("fi_fabric", said, fabric, self.library)
    }

    /// Memory registration: what is asked of us (`FI_MR_...`).
    pub fn mr_mode(&self) -> c_int {
        // SAFETY: as in `suits`.
        unsafe { (*self.domain_attr).mr_mode }
    }

    /// Receives that may be posted.
    pub fn receives(&self) -> usize {
        // SAFETY: as in `suits`.
        unsafe { (*self.rx_attr).size }
    }

    pub fn limits(&self) -> Limits {
        // SAFETY: as in `suits`.
        let (tx, ep) = unsafe { (&*self.tx_attr, &*self.ep_attr) };
        // libfabric says nothing of completion vectors: the provider takes ours modulo its own.
        Limits { write: ep.max_msg_size.min(1 << 30), writes: tx.size.clamp(1, 4096), vectors: 64 }
    }
}

impl Object<Fabric> {
    pub fn open_events(&self) -> Result<Object<Eq>, EngineError> {
        let mut attr = EqAttr {
            size: 0,
            flags: 0,
            wait_obj: abi::FI_WAIT_FD,
            signaling_vector: 0,
            wait_set: ptr::null_mut(),
        };
        let mut eq = ptr::null_mut();
        // SAFETY: an open fabric; attributes that stay for the call.
        let said = unsafe { ((*self.ops).eq_open)(self.raw(), &raw mut attr, &raw mut eq, ptr::null_mut()) };
        Object::made("fi_eq_open", said, eq, self.library)
    }

    pub fn open_domain(&self, info: &Object<Info>) -> Result<Object<Domain>, EngineError> {
        let mut domain = ptr::null_mut();
        // SAFETY: an open fabric and its Info.
        let said = unsafe { ((*self.ops).domain)(self.raw(), info.raw(), &raw mut domain, ptr::null_mut()) };
        Object::made("fi_domain", said, domain, self.library)
    }

    pub fn listen(&self, info: &Object<Info>, events: &Object<Eq>) -> Result<Object<Pep>, EngineError> {
        let mut pep = ptr::null_mut();
        // SAFETY: an open fabric and an Info with the address to listen at.
        let said = unsafe { ((*self.ops).passive_ep)(self.raw(), info.raw(), &raw mut pep, ptr::null_mut()) };
        let pep = Object::made("fi_passive_ep", said, pep, self.library)?;
        bind("fi_pep_bind", &pep, events.fid(), 0)?;
        // SAFETY: an open passive endpoint, with its table for connections.
        check("fi_listen", unsafe { ((*pep.cm).listen)(pep.raw()) })?;
        Ok(pep)
    }

    /// Whether the queues' descriptors will tell of what comes, and there is nothing yet.
    pub fn may_wait(&self, fids: &mut [*mut Fid]) -> bool {
        // SAFETY: open queues of this fabric, as many as are said.
        unsafe { ((*self.ops).trywait)(self.raw(), fids.as_mut_ptr(), fids.len() as c_int) == 0 }
    }
}

fn bind<T: Close>(
    what: &'static str,
    to: &Object<T>,
    other: *mut Fid,
    flags: u64,
) -> Result<(), EngineError> {
    // SAFETY: two open objects.
    check(what, unsafe { ((*(*to.fid()).ops).bind)(to.fid(), other, flags) })
}

/// The descriptor that tells of news of a queue.
pub fn descriptor(fid: *mut Fid) -> Result<c_int, EngineError> {
    let mut fd: c_int = -1;
    // SAFETY: an open queue, made with FI_WAIT_FD, whose wait object is a descriptor.
    let said = unsafe { ((*(*fid).ops).control)(fid, abi::FI_GETWAIT, (&raw mut fd).cast()) };
    check("fi_control(FI_GETWAIT)", said).map(|()| fd)
}

impl Object<Domain> {
    pub fn open_queue(&self, vector: u32, size: usize) -> Result<Object<Cq>, EngineError> {
        let mut attr = CqAttr {
            size,
            flags: abi::FI_AFFINITY,
            format: abi::FI_CQ_FORMAT_DATA,
            wait_obj: abi::FI_WAIT_FD,
            signaling_vector: vector as c_int,
            wait_cond: 0,
            wait_set: ptr::null_mut(),
        };
        let mut cq = ptr::null_mut();
        // SAFETY: an open domain; attributes that stay for the call.
        let mut said =
            unsafe { ((*self.ops).cq_open)(self.raw(), &raw mut attr, &raw mut cq, ptr::null_mut()) };
        if said != 0 {
            // The provider knows no completion vectors.
            attr.flags = 0;
            // SAFETY: as above.
            said = unsafe { ((*self.ops).cq_open)(self.raw(), &raw mut attr, &raw mut cq, ptr::null_mut()) };
        }
        Object::made("fi_cq_open", said, cq, self.library)
    }

    pub fn open_endpoint(&self, info: &Object<Info>) -> Result<Object<Ep>, EngineError> {
        let mut ep = ptr::null_mut();
        // SAFETY: an open domain and an Info of its provider.
        let said = unsafe { ((*self.ops).endpoint)(self.raw(), info.raw(), &raw mut ep, ptr::null_mut()) };
        Object::made("fi_endpoint", said, ep, self.library)
    }

    /// Registers all of `memory`, by a key that cannot be guessed where the key is ours to choose.
    pub fn register(&self, memory: &Memory, mode: c_int) -> Result<Object<Mr>, EngineError> {
        let wanted = if mode & abi::FI_MR_PROV_KEY == 0 { random()? } else { 0 };
        let mut mr = ptr::null_mut();
        // SAFETY: an open domain, with its table for memory; memory that stays mapped until it is deregistered, as the engine holds it.
        let said = unsafe {
            ((*self.mr).reg)(
                self.fid(),
                memory.address(0).cast_const().cast(),
                memory.len(),
                abi::FI_WRITE | abi::FI_REMOTE_WRITE,
                0,
                wanted,
                0,
                &raw mut mr,
                ptr::null_mut(),
            )
        };
        Object::made("fi_mr_reg", said, mr, self.library)
    }
}

impl Object<Mr> {
    pub fn key(&self) -> u64 {
        self.key
    }

    pub fn descriptor(&self) -> *mut c_void {
        self.mem_desc
    }
}

impl Object<Ep> {
    pub fn bind<T: Close>(&self, other: &Object<T>, flags: u64) -> Result<(), EngineError> {
        bind("fi_ep_bind", self, other.fid(), flags)
    }

    pub fn enable(&self) -> Result<(), EngineError> {
        // SAFETY: an open endpoint, all of whose queues are bound.
        let said = unsafe { ((*(*self.fid()).ops).control)(self.fid(), abi::FI_ENABLE, ptr::null_mut()) };
        check("fi_enable", said)
    }

    pub fn connect(&self, info: &Info, hello: &[u8]) -> Result<(), EngineError> {
        // SAFETY: an open endpoint, the address that libfabric has found, and bytes as many as are said.
        let said =
            unsafe { ((*self.cm).connect)(self.raw(), info.dest_addr, hello.as_ptr().cast(), hello.len()) };
        check("fi_connect", said)
    }

    pub fn accept(&self, hello: &[u8]) -> Result<(), EngineError> {
        // SAFETY: an open endpoint of a request's Info, and bytes as many as are said.
        check("fi_accept", unsafe { ((*self.cm).accept)(self.raw(), hello.as_ptr().cast(), hello.len()) })
    }
}

impl Object<Pep> {
    /// Where it listens.
    pub fn address(&self) -> Result<SocketAddr, EngineError> {
        let mut bytes = [0_u64; 16];
        let mut len = size_of_val(&bytes);
        // SAFETY: an open passive endpoint; room for as many bytes as are said.
        let said = unsafe { ((*self.cm).getname)(self.fid(), bytes.as_mut_ptr().cast(), &raw mut len) };
        check("fi_getname", said)?;
        parsed(&bytes).ok_or(EngineError::Failed("fi_getname", 0))
    }

    pub fn refuse(&self, request: &Info) -> Result<(), EngineError> {
        // SAFETY: an open passive endpoint, and the handle of a request that was made to it and is answered now.
        check("fi_reject", unsafe { ((*self.cm).reject)(self.raw(), request.handle, ptr::null(), 0) })
    }
}

fn random() -> Result<u64, EngineError> {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match got {
        Ok(8) => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(EngineError::Failed("getrandom", 0)),
    }
}

/// A socket address as bytes, and how many.
fn sockaddr(ip: IpAddr, port: u16) -> ([u8; 28], usize) {
    let mut bytes = [0; 28];
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u16;
    bytes[..2].copy_from_slice(&family.to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    match ip {
        IpAddr::V4(ip) => {
            bytes[4..8].copy_from_slice(&ip.octets());
            (bytes, 16)
        }
        IpAddr::V6(ip) => {
            bytes[8..24].copy_from_slice(&ip.octets());
            (bytes, 28)
        }
    }
}

fn parsed(words: &[u64; 16]) -> Option<SocketAddr> {
    let mut bytes = [0; 128];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let ip: IpAddr = match c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        libc::AF_INET => Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]).into(),
        libc::AF_INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).ok()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Room for an event of a connection, with what the peer says behind it.
#[repr(C)]
pub struct EventBuffer {
    entry: EqCmEntry,
    /// More than we ever say: a peer may say more, which is cut off.
    hello: [u8; 4 * MAX_HELLO],
    len: usize,
}

/// What the event queue has.
pub enum EventRead {
    Nothing,
    Event(u32),
    Failed(EqErrEntry),
}

impl EventBuffer {
    const ENTRY: usize = size_of::<EqCmEntry>();

    pub fn new() -> Self {
        Self {
            entry: EqCmEntry { fid: ptr::null_mut(), info: ptr::null_mut() },
            hello: [0; 4 * MAX_HELLO],
            len: 0,
        }
    }

    pub fn entry(&self) -> &EqCmEntry {
        &self.entry
    }

    pub fn hello(&self) -> &[u8] {
        &self.hello[..self.len]
    }

    pub fn read(&mut self, events: &Object<Eq>) -> EventRead {
        let mut kind = 0;
        let room = Self::ENTRY + self.hello.len();
        // SAFETY: an open queue; the entry and the bytes behind it are one piece (repr(C), no padding between them).
        let said = unsafe {
            let at: *mut Self = self;
            ((*events.ops).read)(events.raw(), &raw mut kind, at.cast(), room, 0)
        };
        if said >= 0 {
            self.len = (said as usize).saturating_sub(Self::ENTRY).min(self.hello.len());
            return EventRead::Event(kind);
        }
        if said != -abi::FI_EAVAIL {
            return EventRead::Nothing;
        }
        // SAFETY: numbers and pointers, all of which may be zero.
        let mut error: EqErrEntry = unsafe { zeroed() };
        // SAFETY: as above; one entry, with no room for the provider's own data.
        let said = unsafe { ((*events.ops).readerr)(events.raw(), &raw mut error, 0) };
        if said < 0 { EventRead::Nothing } else { EventRead::Failed(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for ip in ["10.1.2.3", "::1", "fe80::1:2"] {
            let ip: IpAddr = ip.parse().unwrap();
            let (bytes, len) = sockaddr(ip, 4711);
            let mut words = [0; 16];
            let mut padded = [0; 128];
            padded[..len].copy_from_slice(&bytes[..len]);
            for (word, bytes) in words.iter_mut().zip(padded.chunks_exact(8)) {
                *word = u64::from_ne_bytes(bytes.try_into().unwrap());
            }
            assert_eq!(parsed(&words), Some(SocketAddr::new(ip, 4711)));
        }
    }
}
