//! Initial sequence numbers of a TCP connection, for a privileged broker.
//!
//! The two of them are 64 random bits that both ends know and nobody else who is not on the path. They stay
//! the same through NAT and from namespace to namespace, so that they prove two sockets to be two ends of
//! one connection where addresses prove nothing.
//!
//! TCP_REPAIR would show them too, but while a socket is in repair mode its program's sends go astray. A BPF
//! program only looks: `bpf_sk_lookup_tcp` finds the socket by its addresses in its namespace, and
//! `struct bpf_tcp_sock` (include/uapi/linux/bpf.h) has the numbers. It is attached to nothing; it runs when
//! BPF_PROG_TEST_RUN calls it. Needs CAP_BPF and CAP_NET_ADMIN, for other namespaces CAP_SYS_ADMIN too.

use crate::facts::{Facts, Sequences, Tuple};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use shunpike_wire::session::Role;
use std::io::Error;
use std::net::IpAddr;

/// Reads sequence numbers.
pub struct SequenceReader {
    v4: OwnedFd,
    v6: OwnedFd,
    netns: OwnedFd,
    netns_cookie: Option<u64>,
}

impl SequenceReader {
    /// Loads the programs. Errors: not privileged, or no BPF.
    pub fn new() -> Result<Self, Error> {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let netns = rustix::fs::open("/proc/self/ns/net", flags, rustix::fs::Mode::empty())?;
        let own = std::os::unix::net::UnixDatagram::unbound()?;
        Ok(Self {
            v4: load(&program(V4_TUPLE))?,
            v6: load(&program(V6_TUPLE))?,
            netns,
            netns_cookie: crate::facts::netns_cookie(own.as_fd()),
        })
    }

    /// The descriptors that it works with.
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.v4.as_fd(), self.v6.as_fd(), self.netns.as_fd()]
    }

    /// The numbers of `socket`, of which `facts` are known; `None` when it is not found, or busy.
    pub fn read(&self, socket: BorrowedFd<'_>, role: Role, facts: &Facts) -> Option<Sequences> {
        if facts.netns.is_some() && facts.netns == self.netns_cookie {
            return self.look(role, facts.tuple);
        }
        let there = netns_of(socket)?;
        let network = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(there.as_fd(), network).ok()?;
        let numbers = self.look(role, facts.tuple);
        // Without the way back the broker would look into the wrong namespace from now on.
        move_into_link_name_space(self.netns.as_fd(), network).expect("back into our own namespace");
        numbers
    }

    fn look(&self, role: Role, tuple: Tuple) -> Option<Sequences> {
        const TRIES: usize = 4;
        let mut before = None;
        for _ in 0..TRIES {
            let numbers = self.look_once(role, tuple)?;
            // The program takes no lock: what two looks agree upon was not read while it changed.
            if before == Some(numbers) {
                return before;
            }
            before = Some(numbers);
        }
        None
    }

    fn look_once(&self, role: Role, tuple: Tuple) -> Option<Sequences> {
        let mut data = [0; DATA];
        let program = match (tuple.remote.ip, tuple.local.ip) {
            (IpAddr::V4(remote), IpAddr::V4(local)) => {
                put(&mut data, TUPLE_AT, &remote.octets());
                put(&mut data, TUPLE_AT + 4, &local.octets());
                put(&mut data, TUPLE_AT + 8, &tuple.remote.port.to_be_bytes());
                put(&mut data, TUPLE_AT + 10, &tuple.local.port.to_be_bytes());
                &self.v4
            }
            (IpAddr::V6(remote), IpAddr::V6(local)) => {
                put(&mut data, TUPLE_AT, &remote.octets());
                put(&mut data, TUPLE_AT + 16, &local.octets());
                put(&mut data, TUPLE_AT + 32, &tuple.remote.port.to_be_bytes());
                put(&mut data, TUPLE_AT + 34, &tuple.local.port.to_be_bytes());
                &self.v6
            }
            _ => return None,
        };
        let data = test_run(program.as_fd(), &data)?;
        let word = |at: usize| data.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        let long = |at: usize| data.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        let (una, next) = (word(SND_UNA_AT)?, word(RCV_NXT_AT)?);
        // Sequence numbers count modulo 2^32.
        let (acked, received) = (long(ACKED_AT)? as u32, long(RECEIVED_AT)? as u32);
        let syn = u32::from(role == Role::Client);
        Some(Sequences { own: una.wrapping_sub(acked).wrapping_add(syn), peer: next.wrapping_sub(received) })
    }
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = to.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}

// What the program is given and gives back: an Ethernet header's room, the tuple, the answer.
const TUPLE_AT: usize = 16;
const SND_UNA_AT: usize = 64;
const RCV_NXT_AT: usize = 68;
const ACKED_AT: usize = 72;
const RECEIVED_AT: usize = 80;
const DATA: usize = 96;

// struct bpf_sock_tuple: its length tells the family.
const V4_TUPLE: i32 = 12;
const V6_TUPLE: i32 = 36;

/// One BPF instruction: code, destination, source, offset, immediate (include/uapi/linux/bpf.h).
fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    u64::from(code)
        | u64::from(dst | src << 4) << 8
        | u64::from(off as u16) << 16
        | u64::from(imm as u32) << 32
}

/// Looks a TCP socket up and copies four fields of it. Returns 0, or 1 when there is none.
fn program(tuple_len: i32) -> Vec<u64> {
    const LDX_W: u8 = 0x61;
    const LDX_DW: u8 = 0x79;
    const STX_W: u8 = 0x63;
    const STX_DW: u8 = 0x7b;
    const MOV_X: u8 = 0xbf;
    const MOV_K: u8 = 0xb7;
    const ADD_K: u8 = 0x07;
    const JGT_X: u8 = 0x2d;
    const JEQ_K: u8 = 0x15;
    const JNE_K: u8 = 0x55;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const SK_LOOKUP_TCP: i32 = 84;
    const SK_RELEASE: i32 = 86;
    const TCP_SOCK: i32 = 96;
    // struct __sk_buff, bpf_sock, bpf_tcp_sock
    const SKB_DATA: i16 = 76;
    const SKB_DATA_END: i16 = 80;
    const SOCK_STATE: i16 = 72;
    const TCP_RCV_NXT: i16 = 16;
    const TCP_SND_UNA: i16 = 24;
    const TCP_BYTES_RECEIVED: i16 = 80;
    const TCP_BYTES_ACKED: i16 = 88;
    const ESTABLISHED: i32 = 1;
    const BPF_F_CURRENT_NETNS: i32 = -1;

    let (una, next) = (SND_UNA_AT as i16, RCV_NXT_AT as i16);
    let (acked, received) = (ACKED_AT as i16, RECEIVED_AT as i16);
    // Targets of the jumps, which count from the instruction after them.
    const RELEASE: i16 = 28;
    const NONE: i16 = 30;
    vec![
        insn(LDX_W, 7, 1, SKB_DATA, 0),
        insn(LDX_W, 2, 1, SKB_DATA_END, 0),
        insn(MOV_K, 9, 0, 0, 1),
        insn(MOV_X, 3, 7, 0, 0),
        insn(ADD_K, 3, 0, 0, DATA as i32),
        insn(JGT_X, 3, 2, NONE - 6, 0),
        insn(MOV_X, 2, 7, 0, 0),
        insn(ADD_K, 2, 0, 0, TUPLE_AT as i32),
        insn(MOV_K, 3, 0, 0, tuple_len),
        insn(MOV_K, 4, 0, 0, BPF_F_CURRENT_NETNS),
        insn(MOV_K, 5, 0, 0, 0),
        insn(CALL, 0, 0, 0, SK_LOOKUP_TCP),
        insn(JEQ_K, 0, 0, NONE - 13, 0),
        insn(MOV_X, 8, 0, 0, 0),
        insn(LDX_W, 1, 0, SOCK_STATE, 0),
        insn(JNE_K, 1, 0, RELEASE - 16, ESTABLISHED),
        insn(MOV_X, 1, 8, 0, 0),
        insn(CALL, 0, 0, 0, TCP_SOCK),
        insn(JEQ_K, 0, 0, RELEASE - 19, 0),
        insn(LDX_W, 1, 0, TCP_SND_UNA, 0),
        insn(STX_W, 7, 1, una, 0),
        insn(LDX_W, 1, 0, TCP_RCV_NXT, 0),
        insn(STX_W, 7, 1, next, 0),
        insn(LDX_DW, 1, 0, TCP_BYTES_ACKED, 0),
        insn(STX_DW, 7, 1, acked, 0),
        insn(LDX_DW, 1, 0, TCP_BYTES_RECEIVED, 0),
        insn(STX_DW, 7, 1, received, 0),
        insn(MOV_K, 9, 0, 0, 0),
        // RELEASE:
        insn(MOV_X, 1, 8, 0, 0),
        insn(CALL, 0, 0, 0, SK_RELEASE),
        // NONE:
        insn(MOV_X, 0, 9, 0, 0),
        insn(EXIT, 0, 0, 0, 0),
    ]
}

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_TEST_RUN: libc::c_int = 10;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;

#[repr(C)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

#[repr(C)]
struct TestRunAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    rest: [u64; 5],
}

fn load(program: &[u64]) -> Result<OwnedFd, Error> {
    let mut attr = LoadAttr {
        prog_type: BPF_PROG_TYPE_SCHED_CLS,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: *b"shunpike_isn\0\0\0\0",
    };
    // SAFETY: the attributes are those of BPF_PROG_LOAD; program and licence outlive the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw mut attr, size_of::<LoadAttr>() as libc::c_uint)
    };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor (close-on-exec) to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Runs a program on a packet of `data`; `None` when it, or the kernel, says no.
fn test_run(program: BorrowedFd<'_>, data: &[u8; DATA]) -> Option<[u8; DATA]> {
    let mut out = [0; DATA];
    let mut attr = TestRunAttr {
        prog_fd: program.as_raw_fd() as u32,
        retval: 0,
        data_size_in: DATA as u32,
        data_size_out: DATA as u32,
        data_in: data.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        repeat: 1,
        duration: 0,
        rest: [0; 5],
    };
    // SAFETY: the attributes are those of BPF_PROG_TEST_RUN; both buffers have the sizes stated and outlive
    // the call.
    let rc = unsafe {
        let len = size_of::<TestRunAttr>() as libc::c_uint;
        libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attr, len)
    };
    (rc == 0 && attr.retval == 0).then_some(out)
}

/// The network namespace of a socket.
fn netns_of(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    const SIOCGSKNS: libc::Ioctl = 0x894c;
    // SAFETY: SIOCGSKNS takes no argument and returns a descriptor.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    // SAFETY: the kernel has just given this descriptor to us alone.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Counts, Proof, prove};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn facts(socket: &TcpStream, role: Role, tx: u64, rx: u64) -> Facts {
        match prove(socket.as_fd(), role, Counts { tx, rx }, || None) {
            Proof::Proved(facts) => facts,
            other => panic!("{other:?}"),
        }
    }

    /// Without privilege there is nothing to test but that it is said so.
    #[test]
    fn two_ends_have_mirrored_numbers_whatever_was_sent() {
        let reader = match SequenceReader::new() {
            Ok(reader) => reader,
            Err(error) => {
                assert!(!rustix::process::geteuid().is_root(), "root cannot load the program: {error}");
                return;
            }
        };
        let mut seen = Vec::new();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut server = listener.accept().unwrap().0;
            for n in [0, 1000] {
                client.write_all(&vec![1; n]).unwrap();
                server.read_exact(&mut vec![0; n]).unwrap();
                let n = n as u64;
                let of = |socket: &TcpStream, role, tx, rx| {
                    reader.read(socket.as_fd(), role, &facts(socket, role, tx, rx)).expect("found")
                };
                let (a, b) = (of(&client, Role::Client, n, 0), of(&server, Role::Server, 0, n));
                assert_eq!(a, b.mirrored());
                seen.push(a);
            }
        }
        assert_eq!(seen[0], seen[1], "the same before and after bytes went");
        assert_ne!(seen[0], seen[2], "another connection has others");
    }
}
