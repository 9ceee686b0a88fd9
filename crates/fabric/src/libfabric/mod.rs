//! The engine `libfabric`: endpoints of the type `FI_EP_MSG` by its provider tcp or verbs. Loaded when it is made.
//!
//! Objects are kept in the order in which they may be closed: endpoints before the queues that they are bound to, these before the domain.
//! An operation's context is a number, the endpoint's and the caller's, and no address: so what comes late finds nothing that is gone.

mod abi;
mod library;
mod object;
mod post;

use crate::engine::{
    Completion, Endpoint, Engine, EngineError, Event, Limits, MAX_HELLO, Queue, RToken, Registered, Request,
    Source, Target,
};
use crate::memory::Memory;
use abi::{CqDataEntry, EqCmEntry, EqErrEntry, Info};
use library::Library;
use object::{Object, Options, check};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

/// A provider of libfabric's.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Provider {
    /// TCP sockets: works everywhere, and is no faster than they are.
    Tcp,
    /// InfiniBand, RoCE, iWARP.
    Verbs,
}

impl Provider {
    /// By libfabric's name. Errors: `Unfit` for one that we do not know, or that does not keep writes in order.
    pub fn named(name: &str) -> Result<Self, EngineError> {
        match name {
            "tcp" => Ok(Self::Tcp),
            "verbs" => Ok(Self::Verbs),
            "efa" => Err(EngineError::Unfit(
                "efa delivers writes in any order (SRD), which link groups cannot take yet: use tcp or verbs"
                    .into(),
            )),
            _ => Err(EngineError::Unfit(format!("no provider {name:?}: there are tcp and verbs"))),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        }
    }
}

/// The engine.
pub struct Libfabric {
    library: Library,
    options: Options,
    endpoints: HashMap<Endpoint, Connection>,
    requests: HashMap<Request, Object<Info>>,
    listener: Option<Object<abi::Pep>>,
    /// The queues of endpoints that have one alone.
    receivers: Vec<(Queue, Endpoint, Rc<Object<abi::Cq>>)>,
    queues: Vec<Rc<Object<abi::Cq>>>,
    memories: HashMap<Registered, Registration>,
    events: Object<abi::Eq>,
    domain: Object<abi::Domain>,
    /// Closed last of all.
    fabric: Object<abi::Fabric>,
    /// What was told before anybody asked.
    told: VecDeque<Event>,
    info: Object<Info>,
    limits: Limits,
    next: u32,
}

struct Connection {
    ep: Object<abi::Ep>,
    lost: bool,
}

struct Registration {
    mr: Object<abi::Mr>,
    /// Keeps it mapped.
    memory: Memory,
}

impl Libfabric {
    /// An engine on the device that has `local`. Errors: `Missing`; `Unfit` where the provider is not there or cannot do what is needed;
    /// `Failed`.
    pub fn open(provider: Provider, local: SocketAddr) -> Result<Self, EngineError> {
        let library = Library::load()?;
        let options = Options { provider, local };
        let info = options.find(library, None)?;
        options.suits(&info)?;
        let fabric = info.open_fabric()?;
        let events = fabric.open_events()?;
        let domain = fabric.open_domain(&info)?;
        let limits = info.limits();
        Ok(Self {
            library,
            options,
            endpoints: HashMap::new(),
            requests: HashMap::new(),
            listener: None,
            receivers: Vec::new(),
            queues: Vec::new(),
            memories: HashMap::new(),
            events,
            domain,
            fabric,
            told: VecDeque::new(),
            info,
            limits,
            next: 1,
        })
    }

    /// Whether a write with immediate takes a posted receive, whose context names the endpoint.
    fn takes_receives(&self) -> bool {
        self.info.mode & abi::FI_RX_CQ_DATA != 0
    }

    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// An endpoint of `info`, bound and enabled.
    fn endpoint(&mut self, info: &Object<Info>, queue: Queue) -> Result<Endpoint, EngineError> {
        let shared = self.queues.get(queue.0 as usize).ok_or(EngineError::Unknown)?;
        let receives = self.takes_receives();
        // Where no receive is taken, nothing says of an immediate whose it is, but that its queue is one endpoint's alone.
        let own = if receives { None } else { Some(self.domain.open_queue(0, self.limits.writes)?) };
        let ep = self.domain.open_endpoint(info)?;
        ep.bind(&self.events, 0)?;
        ep.bind(shared, abi::FI_TRANSMIT)?;
        ep.bind(own.as_ref().unwrap_or(shared), abi::FI_RECV)?;
        ep.enable()?;
        let endpoint = Endpoint(self.number());
        if receives {
            for _ in 0..info.receives() {
                post::receive(&ep, endpoint)?;
            }
        }
        self.endpoints.insert(endpoint, Connection { ep, lost: false });
        self.receivers.extend(own.map(|own| (queue, endpoint, Rc::new(own))));
        Ok(endpoint)
    }

    fn endpoint_of(&self, fid: *mut abi::Fid) -> Option<Endpoint> {
        self.endpoints.iter().find(|(_, one)| one.ep.fid() == fid).map(|(endpoint, _)| *endpoint)
    }

    /// The loss of an endpoint, told once.
    fn lose(&mut self, endpoint: Endpoint) -> Option<Event> {
        let one = self.endpoints.get_mut(&endpoint)?;
        (!std::mem::replace(&mut one.lost, true)).then_some(Event::Lost { endpoint })
    }

    /// What the event queue has, in our words. `None`: nothing of ours.
    fn translate(&mut self, kind: u32, entry: &EqCmEntry, hello: &[u8]) -> Option<Event> {
        let hello = hello[..hello.len().min(MAX_HELLO)].to_vec();
        match kind {
            abi::FI_CONNREQ => {
                let info = Object::of_info(entry.info, self.library)?;
                let request = Request(self.number());
                self.requests.insert(request, info);
                Some(Event::Requested { request, hello })
            }
            abi::FI_CONNECTED => Some(Event::Connected { endpoint: self.endpoint_of(entry.fid)?, hello }),
            abi::FI_SHUTDOWN => self.lose(self.endpoint_of(entry.fid)?),
            _ => None,
        }
    }

    /// Reads a queue empty.
    fn drain(
        &mut self,
        cq: &Object<abi::Cq>,
        owner: Option<Endpoint>,
        news: &mut Vec<Completion>,
    ) -> Result<(), EngineError> {
        loop {
            let mut entries = [CqDataEntry::NONE; 32];
            match post::read(cq, &mut entries)? {
                post::Read::Entries(0) => return Ok(()),
                post::Read::Entries(n) => {
                    for entry in &entries[..n] {
                        self.take(entry, owner, news)?;
                    }
                }
                post::Read::Failed { context, flags } => {
                    let (endpoint, context) = post::unpack(context);
                    if flags & (abi::FI_WRITE | abi::FI_TRANSMIT) != 0
                        && self.endpoints.contains_key(&endpoint)
                    {
                        news.push(Completion::Written { endpoint, context, done: false });
                    }
                    let lost = self.lose(owner.unwrap_or(endpoint));
                    self.told.extend(lost);
                }
            }
        }
    }

    fn take(
        &mut self,
        entry: &CqDataEntry,
        owner: Option<Endpoint>,
        news: &mut Vec<Completion>,
    ) -> Result<(), EngineError> {
        let (endpoint, context) = post::unpack(entry.op_context);
        if entry.flags & abi::FI_REMOTE_CQ_DATA != 0 {
            let endpoint = owner.unwrap_or(endpoint);
            let Some(one) = self.endpoints.get(&endpoint) else { return Ok(()) };
            // The immediate's receive is posted again before its news is acted upon: so there is always one.
            if self.takes_receives() && post::receive(&one.ep, endpoint).is_err() {
                let lost = self.lose(endpoint);
                self.told.extend(lost);
            }
            news.push(Completion::Immediate { endpoint, data: entry.data as u32 });
        } else if self.endpoints.contains_key(&endpoint) {
            news.push(Completion::Written { endpoint, context, done: true });
        }
        Ok(())
    }
}

impl Engine for Libfabric {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn open_queue(&mut self, vector: u32) -> Result<Queue, EngineError> {
        let vector = vector % self.limits.vectors;
        let cq = self.domain.open_queue(vector, 16 * self.limits.writes)?;
        self.queues.push(Rc::new(cq));
        Ok(Queue(self.queues.len() as u32 - 1))
    }

    fn listen(&mut self, at: SocketAddr) -> Result<SocketAddr, EngineError> {
        let info = Options { local: at, ..self.options }.find(self.library, None)?;
        let pep = self.fabric.listen(&info, &self.events)?;
        let address = pep.address()?;
        self.listener = Some(pep);
        Ok(address)
    }

    fn connect(&mut self, to: SocketAddr, queue: Queue, hello: &[u8]) -> Result<Endpoint, EngineError> {
        if hello.len() > MAX_HELLO {
            return Err(EngineError::Hello);
        }
        let info = self.options.find(self.library, Some(to))?;
        let endpoint = self.endpoint(&info, queue)?;
        if let Err(error) = self.endpoints[&endpoint].ep.connect(&info, hello) {
            self.close(endpoint);
            return Err(error);
        }
        Ok(endpoint)
    }

    fn accept(&mut self, request: Request, queue: Queue, hello: &[u8]) -> Result<Endpoint, EngineError> {
        if hello.len() > MAX_HELLO {
            return Err(EngineError::Hello);
        }
        let info = self.requests.remove(&request).ok_or(EngineError::Unknown)?;
        let endpoint = self.endpoint(&info, queue)?;
        if let Err(error) = self.endpoints[&endpoint].ep.accept(hello) {
            self.close(endpoint);
            return Err(error);
        }
        Ok(endpoint)
    }

    fn refuse(&mut self, request: Request) -> Result<(), EngineError> {
        let info = self.requests.remove(&request).ok_or(EngineError::Unknown)?;
        self.listener.as_ref().ok_or(EngineError::Unknown)?.refuse(&info)
    }

    fn close(&mut self, endpoint: Endpoint) {
        // Its own queue goes after it.
        self.endpoints.remove(&endpoint);
        self.receivers.retain(|(_, owner, _)| *owner != endpoint);
        self.told.retain(|event| *event != Event::Lost { endpoint });
    }

    fn register(&mut self, memory: &Memory) -> Result<(Registered, RToken), EngineError> {
        let mode = self.info.mr_mode();
        let mr = self.domain.register(memory, mode)?;
        let token = RToken {
            key: mr.key(),
            address: if mode & abi::FI_MR_VIRT_ADDR == 0 { 0 } else { memory.address(0) as u64 },
        };
        let registered = Registered(self.number());
        self.memories.insert(registered, Registration { mr, memory: memory.clone() });
        Ok((registered, token))
    }

    fn deregister(&mut self, memory: Registered) -> Result<(), EngineError> {
        let Registration { mr, memory } = self.memories.remove(&memory).ok_or(EngineError::Unknown)?;
        drop(mr);
        drop(memory);
        Ok(())
    }

    #[inline]
    fn write(
        &mut self,
        endpoint: Endpoint,
        source: Source,
        target: Target,
        immediate: u32,
        context: u32,
    ) -> Result<(), EngineError> {
        let from = self.memories.get(&source.memory).ok_or(EngineError::Unknown)?;
        if source.len == 0
            || source.len > self.limits.write
            || !from.memory.contains(source.offset, source.len)
        {
            return Err(EngineError::Range);
        }
        let one = self.endpoints.get(&endpoint).ok_or(EngineError::Unknown)?;
        let to = target.token.address.wrapping_add(target.offset);
        let write = post::Write {
            from: from.memory.address(source.offset),
            len: source.len,
            descriptor: from.mr.descriptor(),
            immediate,
            to,
            key: target.token.key,
            context: post::pack(endpoint, context),
        };
        post::write(&one.ep, &write)
    }

    #[inline]
    fn poll(&mut self, queue: Queue, news: &mut Vec<Completion>) -> Result<(), EngineError> {
        let shared = Rc::clone(self.queues.get(queue.0 as usize).ok_or(EngineError::Unknown)?);
        self.drain(&shared, None, news)?;
        for at in 0..self.receivers.len() {
            let (of, endpoint, own) = &self.receivers[at];
            if *of == queue {
                let (endpoint, own) = (*endpoint, Rc::clone(own));
                self.drain(&own, Some(endpoint), news)?;
            }
        }
        Ok(())
    }

    fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.told.pop_front() {
                return Some(event);
            }
            let mut buffer = object::EventBuffer::new();
            match buffer.read(&self.events) {
                object::EventRead::Nothing => return None,
                object::EventRead::Event(kind) => {
                    let event = self.translate(kind, buffer.entry(), buffer.hello());
                    self.told.extend(event);
                }
                object::EventRead::Failed(EqErrEntry { fid, .. }) => {
                    let lost = self.endpoint_of(fid).and_then(|endpoint| self.lose(endpoint));
                    self.told.extend(lost);
                }
            }
        }
    }

    fn wait(&mut self, most: Duration) -> Result<(), EngineError> {
        let own = self.receivers.iter().map(|(_, _, own)| own);
        let mut fids: Vec<_> = self.queues.iter().chain(own).map(|cq| cq.fid()).collect();
        fids.push(self.events.fid());
        // Whether there is nothing to be read, and the descriptors will tell of what comes.
        if !self.fabric.may_wait(&mut fids) {
            return Ok(());
        }
        let mut polled = Vec::new();
        for fid in fids {
            polled.push(libc::pollfd { fd: object::descriptor(fid)?, events: libc::POLLIN, revents: 0 });
        }
        let most = most.as_millis().min(i32::MAX as u128) as i32;
        // SAFETY: as many elements as are said; they are ours.
        let n = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as _, most) };
        check("poll", if n < 0 { -1 } else { 0 })
    }
}

impl CqDataEntry {
    const NONE: Self = Self { op_context: ptr::null_mut(), flags: 0, len: 0, buf: ptr::null_mut(), data: 0 };
}

#[cfg(test)]
mod tests;
