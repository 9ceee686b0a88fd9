//! The blocks of pcapng that a tap writes (draft-ietf-opsawg-pcapng), little-endian, times in nanoseconds.

/// LINKTYPE_RAW: packets begin with their IP header.
const LINKTYPE: u16 = 101;
const SECTION: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

// Options, by the block that they are of.
const COMMENT: u16 = 1;
const APPLICATION: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_RESOLUTION: u16 = 9;
const PACKET_DROPPED: u16 = 4;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_DROPPED: u16 = 5;

/// Writes one block around what `body` appends.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = ((out.len() - begin + 4) as u32).to_le_bytes();
    out[begin + 4..begin + 8].copy_from_slice(&length);
    out.extend_from_slice(&length);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn pad(out: &mut Vec<u8>, len: usize) {
    out.resize(out.len() + len.next_multiple_of(4) - len, 0);
}

fn end_of_options(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 4]);
}

fn time(out: &mut Vec<u8>, ns: u64) {
    out.extend_from_slice(&((ns >> 32) as u32).to_le_bytes());
    out.extend_from_slice(&(ns as u32).to_le_bytes());
}

/// The file's beginning.
pub fn section(out: &mut Vec<u8>, application: &str) {
    block(out, SECTION, |out| {
        out.extend_from_slice(&0x1A2B_3C4D_u32.to_le_bytes());
        out.extend_from_slice(&[1, 0, 0, 0]);
        // Its length is not known.
        out.extend_from_slice(&u64::MAX.to_le_bytes());
        option(out, APPLICATION, application.as_bytes());
        end_of_options(out);
    });
}

/// An interface: numbered in the order in which they are written, from 0.
pub fn interface(out: &mut Vec<u8>, name: &str, description: &str) {
    block(out, INTERFACE, |out| {
        out.extend_from_slice(&LINKTYPE.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        // Packets are whole, however long.
        out.extend_from_slice(&[0; 4]);
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_DESCRIPTION, description.as_bytes());
        option(out, IF_RESOLUTION, &[9]);
        end_of_options(out);
    });
}

/// A packet at `ns` since 1970. `dropped`: how many of this interface were lost before it.
pub fn packet(out: &mut Vec<u8>, interface: u32, ns: u64, data: &[u8], dropped: u64, comment: Option<&str>) {
    block(out, PACKET, |out| {
        out.extend_from_slice(&interface.to_le_bytes());
        time(out, ns);
        for length in [data.len() as u32; 2] {
            out.extend_from_slice(&length.to_le_bytes());
        }
        out.extend_from_slice(data);
        pad(out, data.len());
        if let Some(comment) = comment {
            option(out, COMMENT, comment.as_bytes());
        }
        if dropped > 0 {
            option(out, PACKET_DROPPED, &dropped.to_le_bytes());
        }
        if comment.is_some() || dropped > 0 {
            end_of_options(out);
        }
    });
}

/// What an interface has had so far: segments that were there to be seen, and those of them that were lost.
pub fn statistics(out: &mut Vec<u8>, interface: u32, ns: u64, received: u64, dropped: u64) {
    block(out, STATISTICS, |out| {
        out.extend_from_slice(&interface.to_le_bytes());
        time(out, ns);
        option(out, STATISTICS_RECEIVED, &received.to_le_bytes());
        option(out, STATISTICS_DROPPED, &dropped.to_le_bytes());
        end_of_options(out);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_say_how_long_they_are_at_both_ends() {
        let mut out = Vec::new();
        section(&mut out, "test");
        interface(&mut out, "a", "an interface");
        packet(&mut out, 0, 1 << 40, b"12345", 3, Some("comment"));
        packet(&mut out, 0, 0, b"", 0, None);
        statistics(&mut out, 0, 5, 6, 7);
        let (mut at, mut kinds) = (0, Vec::new());
        while at < out.len() {
            let word = |at: usize| u32::from_le_bytes(out[at..at + 4].try_into().expect("four bytes"));
            let length = word(at + 4) as usize;
            assert_eq!(word(at + length - 4) as usize, length);
            assert!(length.is_multiple_of(4));
            kinds.push(word(at));
            at += length;
        }
        assert_eq!(kinds, [SECTION, INTERFACE, PACKET, PACKET, STATISTICS]);
    }
}
