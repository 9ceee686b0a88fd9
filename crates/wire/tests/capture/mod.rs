//! As much of the pcap format as the tests need: TCP payloads out of Ethernet captures, and TCP
//! payloads into captures of raw IPv4.

// Each test binary uses a part of this.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

const MAGIC_MICROSECONDS: u32 = 0xa1b2c3d4;
const LINKTYPE_ETHERNET: u32 = 1;
const LINKTYPE_RAW: u32 = 101;
const FIN_SYN: u8 = 0x03;

/// The directory with the captures of a real kernel.
pub fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors")
}

/// The TCP segments that carry payload, in the order of the capture.
pub fn payloads(capture: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(capture).unwrap_or_else(|e| panic!("{}: {e}", capture.display()));
    let le32 = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(le32(0), MAGIC_MICROSECONDS);
    assert_eq!(le32(20), LINKTYPE_ETHERNET);
    let mut found = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let len = le32(at + 8) as usize;
        assert_eq!(len, le32(at + 12) as usize, "packet was cut");
        let ip = &bytes[at + 16 + 14..at + 16 + len];
        let ip_len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let tcp = &ip[usize::from(ip[0] & 0x0f) * 4..ip_len];
        let payload = &tcp[usize::from(tcp[12] >> 4) * 4..];
        if tcp[13] & FIN_SYN == 0 && !payload.is_empty() {
            found.push(payload.to_vec());
        }
        at += 16 + len;
    }
    found
}

/// The CLC messages of a capture: payloads that begin as CLC messages do.
pub fn clc_messages(capture: &Path) -> Vec<Vec<u8>> {
    payloads(capture).into_iter().filter(|p| p.starts_with(&[0xe2, 0xd4, 0xc3])).collect()
}

/// Which end sends a payload.
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum From {
    Client,
    Server,
}

/// A capture under construction: TCP connections between two loopback addresses.
pub struct Capture {
    bytes: Vec<u8>,
    packets: u32,
    port: u16,
    /// Sequence number of the next byte, client's and server's.
    next: [u32; 2],
}

impl Capture {
    pub fn new() -> Self {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC_MICROSECONDS.to_le_bytes());
        bytes.extend(2u16.to_le_bytes());
        bytes.extend(4u16.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(65535u32.to_le_bytes());
        bytes.extend(LINKTYPE_RAW.to_le_bytes());
        Capture { bytes, packets: 0, port: 40000, next: [0; 2] }
    }

    /// Begins another connection.
    pub fn connect(&mut self) {
        self.port += 1;
        self.next = [1000, 2000];
        self.packet(From::Client, 0x02, &[]);
        self.next[0] += 1;
        self.packet(From::Server, 0x12, &[]);
        self.next[1] += 1;
        self.packet(From::Client, 0x10, &[]);
    }

    /// Adds a segment with this payload.
    pub fn send(&mut self, from: From, payload: &[u8]) {
        self.packet(from, 0x18, payload);
        self.next[from as usize] += payload.len() as u32;
    }

    /// How many packets there are, which is also the frame number of the last one.
    pub fn packets(&self) -> u32 {
        self.packets
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn packet(&mut self, from: From, flags: u8, payload: &[u8]) {
        const SERVER_PORT: u16 = 11111;
        let (source, target, seq, ack) = match from {
            From::Client => (self.port, SERVER_PORT, self.next[0], self.next[1]),
            From::Server => (SERVER_PORT, self.port, self.next[1], self.next[0]),
        };
        let mut tcp = Vec::new();
        tcp.extend(source.to_be_bytes());
        tcp.extend(target.to_be_bytes());
        tcp.extend(seq.to_be_bytes());
        tcp.extend(if flags & 0x10 != 0 { ack } else { 0 }.to_be_bytes());
        tcp.extend([0x50, flags]);
        tcp.extend(512u16.to_be_bytes());
        tcp.extend([0; 4]);
        let len = 20 + tcp.len() + payload.len();

        let mut ip = vec![0x45, 0];
        ip.extend((len as u16).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip.extend([127, 0, 0, 1]);
        ip.extend([127, 0, 0, 1]);

        self.bytes.extend(self.packets.to_le_bytes());
        self.bytes.extend(0u32.to_le_bytes());
        self.bytes.extend((len as u32).to_le_bytes());
        self.bytes.extend((len as u32).to_le_bytes());
        self.bytes.extend(ip);
        self.bytes.extend(tcp);
        self.bytes.extend(payload);
        self.packets += 1;
    }
}
