//! Programs whose library speaks another version of the lanes' protocol: one release back or forth, as after an upgrade that has restarted
//! the broker. They get no lanes here. They are listed, can be told to give up the lanes that they have from an earlier
//! broker, and obey the switch.
//!
//! What they share with us may have any layout, and is not looked at: not their arena, and no message but those of control.

use shunpike_shm::pages::SessionPage;
use shunpike_shm::published::Published;
use shunpike_wire::session::{CONTROL, ConnId, LAST_WITHOUT_CONTROL, VERSION};

/// A program without lanes, as far as it says.
pub struct Laneless {
    /// Its name, /proc/PID/comm.
    pub comm: String,
    /// Its version of the control protocol; 0: it has none, and asks for lanes as it always has.
    pub control: u16,
    /// Its version of the lanes' protocol.
    pub version: u32,
    /// Connections on lanes, and others; `None`: it has not said.
    pub connections: Option<(u32, u32)>,
    /// Counts what is sent to it.
    pub page: Published<SessionPage>,
}

/// Which version the welcome of a program is to be in; `None`: its words are not known here at all.
pub fn heard_as(control: u16, version: u32) -> Option<(u16, u32)> {
    match control {
        0 if version == LAST_WITHOUT_CONTROL => Some((0, version)),
        0 => None,
        _ => Some((control.min(CONTROL), VERSION)),
    }
}

/// The end that a nomination names, in the form that it had when there was no control protocol: a type, then the end.
pub fn nominated(message: &[u8]) -> Option<ConnId> {
    const NOMINATE: [u8; 2] = 2u16.to_le_bytes();
    let conn = message.strip_prefix(&NOMINATE)?.first_chunk()?;
    Some(ConnId(u64::from_le_bytes(*conn)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_no_control_hears_its_own_version_if_it_is_the_last_of_these() {
        assert_eq!(heard_as(0, LAST_WITHOUT_CONTROL), Some((0, LAST_WITHOUT_CONTROL)));
        assert_eq!(heard_as(0, LAST_WITHOUT_CONTROL - 1), None);
        assert_eq!(heard_as(CONTROL + 1, VERSION + 1), Some((CONTROL, VERSION)));
        assert_eq!(heard_as(CONTROL, VERSION - 1), Some((CONTROL, VERSION)));
    }
}
