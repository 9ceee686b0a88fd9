//! Bytes from the other side of a session, read as the broker and as the client library would.

use shunpike_wire::session::{FromBroker, MAX, ToBroker};

/// One input.
pub fn run(bytes: &[u8]) {
    let mut again = [0; MAX];
    if let Ok(message) = ToBroker::decode(bytes) {
        let len = message.encode(&mut again).unwrap();
        assert_eq!(ToBroker::decode(&again[..len]), Ok(message));
    }
    if let Ok(message) = FromBroker::decode(bytes) {
        let len = message.encode(&mut again).unwrap();
        assert_eq!(FromBroker::decode(&again[..len]), Ok(message));
    }
}
