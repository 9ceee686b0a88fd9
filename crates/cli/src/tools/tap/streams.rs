//! From records to packets: what TCP would have said of the same bytes.
//!
//! The sequence number of a byte is its number in its direction of the connection, plus one for the SYN. The handshake is shown
//! where a connection is seen from its first byte on.

use super::packet::{Packet, tcp};
use shunpike_shm::tap::{Segment, flag};
use std::collections::HashMap;
use std::net::SocketAddr;

/// Most connections at a time; one more, and all are seen as if for the first time.
const MOST: usize = 1 << 18;

/// The connections seen, and what was missed of them.
#[derive(Default)]
pub struct Streams {
    open: HashMap<Ends, Stream>,
    /// Connections so far.
    pub connections: u64,
    /// Bytes of lanes that were sent, as what came after them shows, and not seen.
    pub missed: u64,
}

/// Client and server.
pub type Ends = (SocketAddr, SocketAddr);

/// Whose connection a segment is of.
pub fn ends(segment: &Segment) -> Ends {
    if segment.flags & flag::OPENER != 0 {
        (segment.local, segment.remote)
    } else {
        (segment.remote, segment.local)
    }
}

#[derive(Default)]
struct Stream {
    /// Client to server, server to client.
    ways: [Way; 2],
}

#[derive(Default)]
struct Way {
    /// Where the next byte is expected; not known before the first.
    next: Option<u64>,
    /// Bytes that went by TCP since the last one that was shown.
    by_tcp: u64,
    over: bool,
}

impl Streams {
    /// Shows a record with its bytes as packets, in order.
    pub fn show<E>(
        &mut self,
        segment: &Segment,
        data: &[u8],
        mut emit: impl FnMut(&Packet<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let ends = ends(segment);
        let at = usize::from(segment.flags & flag::OPENER == 0);
        let is_first = (segment.seq, segment.ack) == (0, 0);
        // The same addresses again: another connection.
        if is_first && self.open.get(&ends).is_some_and(|known| known.ways[at].next.is_some_and(|n| n > 0)) {
            self.open.remove(&ends);
        }
        let is_new = !self.open.contains_key(&ends);
        if is_new && segment.flags & flag::FIN != 0 {
            // Nothing of it was seen.
            return Ok(());
        }
        self.connections += u64::from(is_new);
        if is_new && self.open.len() >= MOST {
            self.open.clear();
        }
        let stream = self.open.entry(ends).or_default();
        if is_new && is_first {
            let [client, server] = [ends.0, ends.1];
            let packet =
                |from, to, seq, ack, flags| Packet { from, to, seq, ack, flags, data: &[], comment: None };
            emit(&packet(client, server, 0, 0, tcp::SYN))?;
            emit(&packet(server, client, 0, 1, tcp::SYN | tcp::ACK))?;
            emit(&packet(client, server, 1, 1, tcp::ACK))?;
            stream.ways.iter_mut().for_each(|way| way.next = Some(0));
        }
        let ack = stream.ways[1 - at].acknowledged(segment.ack);
        let way = &mut stream.ways[at];
        if segment.flags & flag::BEGIN != 0 {
            way.begin(segment.seq);
        }
        let ends_here = segment.flags & flag::FIN != 0 && !way.over;
        if !data.is_empty() || ends_here {
            let missing = way.next.map(|next| segment.seq.saturating_sub(next));
            let comment = match (missing, std::mem::take(&mut way.by_tcp)) {
                (Some(0), 0) => None,
                (Some(0), n) => Some(format!("{n} bytes before this went by TCP")),
                // What a connection sends when its lane is over goes by TCP, and no lane begins that would tell of it.
                (Some(n), _) if ends_here => Some(format!("{n} bytes before this went by TCP, or were lost")),
                (Some(n), _) => {
                    self.missed = self.missed.saturating_add(n);
                    Some(format!("{n} bytes before this were lost by the tap"))
                }
                (None, _) => Some(format!("seen from here on: byte {} of this direction", segment.seq)),
            };
            let flags = tcp::ACK | if ends_here { tcp::FIN } else { tcp::PSH };
            let seq = number(segment.seq);
            emit(&Packet { from: segment.local, to: segment.remote, seq, ack, flags, data, comment })?;
            let end = segment.seq.saturating_add(data.len() as u64);
            way.next = Some(way.next.unwrap_or(0).max(end));
            way.over |= ends_here;
        }
        if stream.ways.iter().all(|way| way.over) {
            self.open.remove(&ends);
        }
        Ok(())
    }
}

impl Way {
    /// A lane begins at a byte: those before it that are not here went by TCP.
    fn begin(&mut self, at: u64) {
        if let Some(next) = self.next.filter(|next| *next < at) {
            self.by_tcp += at - next;
            self.next = Some(at);
        }
    }

    /// What the other end says that it has received of this direction; not more than was shown.
    fn acknowledged(&self, received: u64) -> u32 {
        match self.next {
            Some(next) if received >= next => number(next).wrapping_add(u32::from(self.over)),
            _ => number(received),
        }
    }
}

fn number(byte: u64) -> u32 {
    (byte as u32).wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    const CLIENT: u16 = flag::OPENER;
    const SERVER: u16 = 0;

    struct Shown(Streams);

    impl Shown {
        /// Of each packet: whether the client sent it, flags, sequence and acknowledgement number, comment.
        fn of(&mut self, flags: u16, seq: u64, ack: u64, data: &[u8]) -> Vec<(bool, u8, u32, u32, String)> {
            let (client, server) = ("10.0.0.1:1000", "10.0.0.2:80");
            let (local, remote) = if flags & flag::OPENER != 0 { (client, server) } else { (server, client) };
            let address = |text: &str| text.parse().expect("address");
            let (local, remote) = (address(local), address(remote));
            let segment = Segment { time: 0, seq, ack, len: data.len() as u32, flags, local, remote };
            let mut out = Vec::new();
            let note = |packet: &Packet<'_>| -> Result<(), Infallible> {
                let comment = packet.comment.clone().unwrap_or_default();
                out.push((packet.from == address(client), packet.flags, packet.seq, packet.ack, comment));
                Ok(())
            };
            self.0.show(&segment, data, note).unwrap_or_else(|never| match never {});
            out
        }
    }

    const DATA: u8 = tcp::ACK | tcp::PSH;
    const END: u8 = tcp::ACK | tcp::FIN;

    fn plain(client: bool, flags: u8, seq: u32, ack: u32) -> (bool, u8, u32, u32, String) {
        (client, flags, seq, ack, String::new())
    }

    #[test]
    fn a_connection_seen_from_its_first_byte_has_a_handshake_and_an_end() {
        let mut shown = Shown(Streams::default());
        let handshake = [
            plain(true, tcp::SYN, 0, 0),
            plain(false, tcp::SYN | tcp::ACK, 0, 1),
            plain(true, tcp::ACK, 1, 1),
        ];
        assert_eq!(shown.of(CLIENT | flag::BEGIN, 0, 0, b""), handshake);
        assert_eq!(shown.of(SERVER | flag::BEGIN, 0, 0, b""), []);
        assert_eq!(shown.of(CLIENT, 0, 0, b"hello"), [plain(true, DATA, 1, 1)]);
        assert_eq!(shown.of(SERVER, 0, 5, b"hi"), [plain(false, DATA, 1, 6)]);
        assert_eq!(shown.of(CLIENT | flag::FIN, 5, 2, b""), [plain(true, END, 6, 3)]);
        assert_eq!(shown.of(CLIENT | flag::FIN, 5, 2, b""), [], "shutdown() and then close()");
        assert_eq!(shown.of(SERVER | flag::FIN, 2, 5, b""), [plain(false, END, 3, 7)]);
        assert!(shown.0.open.is_empty());
        assert_eq!(
            shown.of(SERVER, 0, 0, b"220 hello"),
            [&handshake[..], &[plain(false, DATA, 1, 1)]].concat()
        );
        assert_eq!((shown.0.connections, shown.0.missed), (2, 0));
    }

    #[test]
    fn what_went_by_tcp_is_told_and_is_no_loss() {
        let mut shown = Shown(Streams::default());
        assert_eq!(shown.of(CLIENT | flag::BEGIN, 100, 50, b""), []);
        let first = shown.of(CLIENT, 100, 50, b"xyz");
        assert_eq!(first, [(true, DATA, 101, 51, "seen from here on: byte 100 of this direction".into())]);
        assert_eq!(shown.of(CLIENT, 103, 50, b"x"), [plain(true, DATA, 104, 51)]);
        // Back on TCP for a while, and on another lane.
        shown.of(CLIENT | flag::BEGIN, 200, 50, b"");
        let next = shown.of(CLIENT, 200, 50, b"x");
        assert_eq!(next, [(true, DATA, 201, 51, "96 bytes before this went by TCP".into())]);
        assert_eq!(shown.0.missed, 0);
    }

    #[test]
    fn what_is_missing_is_told_and_counted() {
        let mut shown = Shown(Streams::default());
        shown.of(CLIENT, 0, 0, b"hello");
        let next = shown.of(CLIENT, 105, 0, b"x");
        assert_eq!(next, [(true, DATA, 106, 1, "100 bytes before this were lost by the tap".into())]);
        assert_eq!(shown.0.missed, 100);
        // An answer to what was not seen acknowledges what was.
        assert_eq!(shown.of(SERVER, 0, 1000, b"y"), [plain(false, DATA, 1, 107)]);
        shown.of(CLIENT, u64::MAX, 5, b"nonsense of a hostile process");
        assert_eq!(shown.of(CLIENT, 7, 0, b"again").len(), 1);
    }

    #[test]
    fn addresses_that_are_used_again_are_another_connection() {
        let mut shown = Shown(Streams::default());
        shown.of(CLIENT, 0, 0, b"one");
        assert_eq!(shown.of(CLIENT | flag::BEGIN, 0, 0, b"").len(), 3, "a handshake again");
        assert_eq!(shown.of(CLIENT, 0, 0, b"two"), [plain(true, DATA, 1, 1)]);
        assert_eq!(shown.0.connections, 2);
    }
}
