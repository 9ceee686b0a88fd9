//! The seeds of the fuzzers are messages, so that a changed format is noticed here.

mod capture;

use std::path::Path;

use shunpike_wire::clc::Message;
use shunpike_wire::session::{FromBroker, ToBroker};

/// Name and bytes of each seed of a target.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let files = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    files
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

#[test]
fn clc_seeds_are_the_captured_messages() {
    let names = ["first-and-next-contact.pcap", "two-ueids.pcap", "decline.pcap"];
    let captured: Vec<_> =
        names.iter().flat_map(|name| capture::clc_messages(&capture::vectors().join(name))).collect();
    let seeds = seeds("clc_decode");
    assert!(!seeds.is_empty());
    for (name, bytes) in seeds {
        assert!(captured.contains(&bytes), "{name}");
        assert!(Message::decode(&bytes).is_ok(), "{name}");
    }
}

#[test]
fn session_seeds_are_one_of_each_type() {
    let mut types = [Vec::new(), Vec::new()];
    for (name, bytes) in seeds("session_decode") {
        let to_broker = name.starts_with("to-");
        let read = if to_broker {
            ToBroker::decode(&bytes).map(|m| format!("{m:?}"))
        } else {
            FromBroker::decode(&bytes).map(|m| format!("{m:?}"))
        };
        assert!(read.is_ok(), "{name}: {read:?}");
        types[usize::from(to_broker)].push(u16::from_le_bytes([bytes[0], bytes[1]]));
    }
    for types in &mut types {
        assert!(!types.is_empty());
        types.sort_unstable();
        assert_eq!(*types, (1..=types.len() as u16).collect::<Vec<_>>(), "a type is missing or twice");
    }
}
