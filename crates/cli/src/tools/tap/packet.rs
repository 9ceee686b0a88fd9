//! A segment as it would have been on the wire: an IP packet, of the kind LINKTYPE_RAW.

use std::net::{IpAddr, SocketAddr};

/// TCP's flags (RFC 9293, 3.1).
pub mod tcp {
    /// No more data.
    pub const FIN: u8 = 1;
    /// Sequence numbers begin.
    pub const SYN: u8 = 2;
    /// To be handed to the program.
    pub const PSH: u8 = 8;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 16;
}

/// What MSS and window scale on SYNs say: a window that no ring fills, as nothing here waits for one.
const SYN_OPTIONS: [u8; 8] = [2, 4, 0xff, 0xd7, 1, 3, 3, 14];
const WINDOW: u16 = 0xffff;
const TTL: u8 = 64;
const PROTOCOL: u8 = 6;

/// What is in one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Sender.
    pub from: SocketAddr,
    /// Receiver.
    pub to: SocketAddr,
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Of [`tcp`].
    pub flags: u8,
    /// Data, at most 60 KiB.
    pub data: &'a [u8],
    /// What the reader of the capture should know.
    pub comment: Option<String>,
}

impl Packet<'_> {
    /// Appends the packet to `out`: IPv4, or IPv6 where one of the ends is, with correct checksums.
    pub fn write(&self, out: &mut Vec<u8>) {
        let options: &[u8] = if self.flags & tcp::SYN != 0 { &SYN_OPTIONS } else { &[] };
        let length = 20 + options.len() + self.data.len();
        let begin = out.len();
        let pseudo = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let total = (20 + length) as u16;
                out.extend_from_slice(&[0x45, 0]);
                out.extend_from_slice(&total.to_be_bytes());
                // Identification 0, don't fragment.
                out.extend_from_slice(&[0, 0, 0x40, 0, TTL, PROTOCOL, 0, 0]);
                out.extend_from_slice(&from.octets());
                out.extend_from_slice(&to.octets());
                let sum = checksum(add(0, &out[begin..]));
                out[begin + 10..begin + 12].copy_from_slice(&sum);
                add(add(0, &from.octets()), &to.octets())
            }
            (from, to) => {
                let [from, to] = [from, to].map(|ip| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                });
                out.extend_from_slice(&[0x60, 0, 0, 0]);
                out.extend_from_slice(&(length as u16).to_be_bytes());
                out.extend_from_slice(&[PROTOCOL, TTL]);
                out.extend_from_slice(&from);
                out.extend_from_slice(&to);
                add(add(0, &from), &to)
            }
        };
        let segment = out.len();
        out.extend_from_slice(&self.from.port().to_be_bytes());
        out.extend_from_slice(&self.to.port().to_be_bytes());
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.extend_from_slice(&self.ack.to_be_bytes());
        out.extend_from_slice(&[((5 + options.len() / 4) << 4) as u8, self.flags]);
        out.extend_from_slice(&WINDOW.to_be_bytes());
        // Checksum and urgent pointer.
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(options);
        out.extend_from_slice(self.data);
        let pseudo = pseudo + u64::from(PROTOCOL) + length as u64;
        let sum = checksum(add(pseudo, &out[segment..]));
        out[segment + 16..segment + 18].copy_from_slice(&sum);
    }
}

/// Adds bytes to a sum of 16-bit words (RFC 1071).
fn add(sum: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let whole = words.by_ref().map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u64>();
    sum + whole + words.remainder().first().map_or(0, |last| u64::from(*last) << 8)
}

fn checksum(mut sum: u64) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet<'a>(from: &str, to: &str, flags: u8, data: &'a [u8]) -> Packet<'a> {
        let address = |text: &str| text.parse().expect("address");
        Packet { from: address(from), to: address(to), seq: 1, ack: 2, flags, data, comment: None }
    }

    /// A packet whose checksums are right sums up to nothing.
    #[test]
    fn checksums_are_right_for_both_families() {
        for data in [&b""[..], b"x", b"hello there", &[0xff; 60 * 1024]] {
            let mut out = Vec::new();
            packet("10.1.2.3:80", "127.0.0.1:65535", tcp::ACK, data).write(&mut out);
            assert_eq!(out.len(), 40 + data.len());
            assert_eq!(usize::from(u16::from_be_bytes([out[2], out[3]])), out.len());
            assert_eq!(checksum(add(0, &out[..20])), [0, 0]);
            let pseudo = add(0, &out[12..20]) + 6 + (20 + data.len()) as u64;
            assert_eq!(checksum(add(pseudo, &out[20..])), [0, 0]);

            out.clear();
            packet("[::1]:80", "[fe80::1]:1", tcp::SYN, data).write(&mut out);
            assert_eq!(out.len(), 68 + data.len());
            let pseudo = add(0, &out[8..40]) + 6 + (28 + data.len()) as u64;
            assert_eq!(checksum(add(pseudo, &out[40..])), [0, 0]);
        }
    }
}
