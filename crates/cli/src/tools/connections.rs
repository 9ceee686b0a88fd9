//! `ss` and `linkgroup`, in the columns of smc-tools.

use super::presence::Entry;
use super::table::{Table, print};
use crate::args::Ss;
use crate::error::Error;
use crate::kernel::{self, Tables};
use shunpike_broker::report::{Connection, Connections, Direction, LinkGroups, OtherVersion};
use std::collections::HashMap;
use std::net::SocketAddr;

/// What smcss shows where there is nothing to show.
const NONE: &str = "-";

/// Lists connections as smcss does.
pub fn list(answer: Connections, args: &Ss) -> Result<(), Error> {
    let mut heading = vec!["State", "UID", "Inode", "Local-Address", "Peer-Address", "Intf", "Mode"];
    if args.debug {
        heading.extend([
            "Shutd",
            "Token",
            "Sndbuf",
            "Rcvbuf",
            "Peerbuf",
            "rxprod-Cursor",
            "rxcons-Cursor",
            "rxFlags",
        ]);
        heading.extend([
            "txprod-Cursor",
            "txcons-Cursor",
            "txFlags",
            "txprep-Cursor",
            "txsent-Cursor",
            "txfin-Cursor",
        ]);
        heading.extend(["rxLane", "txLane"]);
    }
    if args.smcd {
        heading.extend(["GID", "Token", "Peer-GID", "Peer-Token", "Linkid"]);
    }
    // Behind what smcss has.
    heading.extend(if args.debug { &["PID", "FD", "Entry", "Command"][..] } else { &["PID", "Command"] });
    let mut table = if args.no_header { Table::headless() } else { Table::new(&heading) };
    let mut tables = Tables::default();
    for connection in answer.connections.iter().filter(|connection| is_wanted(connection, args)) {
        let inode = kernel::inode(connection.pid, connection.fd);
        let mut row = vec![
            connection.state.clone(),
            connection.uid.to_string(),
            inode.map_or(NONE.into(), |inode| inode.to_string()),
            known(&connection.local),
            known(&connection.remote),
            // loopback-ism has no network interface.
            NONE.into(),
            connection.mode.clone(),
        ];
        if args.debug {
            let socket = inode.and_then(|inode| tables.socket(connection.pid, inode));
            row.push(socket.map_or(NONE, |socket| shutdown(socket.state)).into());
            row.extend(debug_columns(connection));
        }
        if args.smcd {
            let gid = connection.gid.clone().unwrap_or_else(|| NONE.into());
            let link = connection.link.map_or(NONE.into(), |link| format!("{link:08x}"));
            let (own, peer) = (connection.rx.token.clone(), connection.tx.token.clone());
            // One broker is one device: the peer's GID is the own one.
            row.extend([gid.clone(), own, gid, peer, link]);
        }
        row.push(if connection.pid == 0 { NONE.into() } else { connection.pid.to_string() });
        if args.debug {
            row.push(connection.fd.to_string());
            row.push(connection.entry.clone().unwrap_or_else(|| NONE.into()));
        }
        row.push(connection.comm.clone());
        table.row(row);
    }
    table.print()?;
    let others = if args.listening || args.smcr { &[][..] } else { &answer.other_versions };
    others.iter().try_for_each(|other| print(&other_version(other)))?;
    answer.cut_off.iter().try_for_each(|user| {
        print(&format!(
            "uid {user}: has more connections than are listed; 'shunpike explain PID:FD' tells of each"
        ))
    })
}

/// A program whose connections cannot be listed, in a line.
pub fn other_version(other: &OtherVersion) -> String {
    let OtherVersion { pid, uid, comm, version, ours, reason, .. } = other;
    let has = match other.lanes.zip(other.plain) {
        Some((lanes, plain)) => {
            format!("it says that {lanes} of its connections are on lanes, and {plain} on TCP")
        }
        None => "it does not say what it has".to_owned(),
    };
    format!(
        "PID {pid} ({comm}, uid {uid}): TCP 0x{:08x}, its lanes are of version {version}, the broker's of version {ours}; {has}",
        reason.code
    )
}

fn is_wanted(connection: &Connection, args: &Ss) -> bool {
    let is_listening = connection.state == "LISTEN";
    let is_lane = connection.mode == "SMCD";
    (args.all || args.listening == is_listening) && (is_lane || !args.smcd) && !args.smcr
}

/// Which directions the program or its peer has shut down, by TCP's state, as smcss writes it.
fn shutdown(state: u8) -> &'static str {
    match state {
        // FIN_WAIT1, FIN_WAIT2, TIME_WAIT
        4..=6 => "<-W",
        // CLOSE_WAIT
        8 => "R->",
        // CLOSE, LAST_ACK, CLOSING
        7 | 9 | 11 => "R-W",
        _ => "<->",
    }
}

/// Cursors as seen from this end, in smcss's order: produced, then consumed.
fn debug_columns(connection: &Connection) -> Vec<String> {
    let cursor = |direction: &Direction, at: u64| {
        let (wraps, count) = direction.wrap_count(at);
        format!("{wraps:04x}:{count:08x}")
    };
    let flags = |direction: &Direction| format!("{:02x}:{:02x}", direction.prod_flags, direction.state_flags);
    let (rx, tx) = (&connection.rx, &connection.tx);
    vec![
        rx.token.clone(),
        // Without a copy the send buffer is the part of the peer's ring that is in use.
        format!("{:08x}", tx.window),
        format!("{:08x}", rx.ring),
        format!("{:08x}", tx.ring),
        cursor(rx, rx.peer_cursor),
        cursor(rx, rx.own_cursor),
        flags(rx),
        cursor(tx, tx.own_cursor),
        cursor(tx, tx.peer_cursor),
        flags(tx),
        // What is prepared is sent at once; what the peer has consumed is finished.
        cursor(tx, tx.own_cursor),
        cursor(tx, tx.own_cursor),
        cursor(tx, tx.peer_cursor),
        format!("{}/{}", rx.mode, rx.generation),
        format!("{}/{}", tx.mode, tx.generation),
    ]
}

/// An address, or what stands for one that is not known.
fn known(address: &str) -> String {
    if address.is_empty() { NONE } else { address }.to_owned()
}

/// Asks the kernel for the entry of each, and for the addresses that no program has written down yet: it does so when it asks for a lane.
/// Where we may not look into the process they stay unknown.
pub fn complete<'a>(connections: impl Iterator<Item = &'a mut Connection>) {
    let (mut tables, mut entries) = (Tables::default(), HashMap::new());
    for connection in connections {
        let entry = *entries.entry(connection.pid).or_insert_with(|| Entry::of(connection.pid));
        connection.entry = entry.map(|entry| entry.name().to_owned());
        if !connection.local.is_empty() {
            continue;
        }
        let inode = kernel::inode(connection.pid, connection.fd);
        let Some(socket) = inode.and_then(|inode| tables.socket(connection.pid, inode)) else { continue };
        let local = SocketAddr::new(socket.local.ip().to_canonical(), socket.local.port());
        (connection.local, connection.remote) = (local.to_string(), socket.remote.to_string());
    }
}

/// Only the group that `wanted` names, in hexadecimal as they are shown. Errors: there is no such group.
pub fn only(answer: &mut LinkGroups, wanted: Option<u32>) -> Result<(), Error> {
    let Some(id) = wanted else { return Ok(()) };
    answer.link_groups.retain(|group| group.id == id);
    if answer.link_groups.is_empty() { Err(Error::NoLinkGroup(id)) } else { Ok(()) }
}

/// Lists link groups, with the two processes that each joins.
pub fn link_groups(answer: &LinkGroups) -> Result<(), Error> {
    let mut table = Table::new(&["LG-ID", "VLAN", "#Conns", "PNET-ID", "Max", "Client", "Server"]);
    for group in &answer.link_groups {
        table.row([
            format!("{:08x}", group.id),
            // loopback-ism knows no VLAN and no physical network.
            "0x0".into(),
            group.conns.to_string(),
            NONE.into(),
            group.max_conns.to_string(),
            format!("{}/{}", group.client_pid, group.client_comm),
            format!("{}/{}", group.server_pid, group.server_comm),
        ]);
    }
    table.print()
}

/// Lists the two sides of each link group: a group has one link, a page of memory that both processes share.
pub fn links(answer: &LinkGroups) -> Result<(), Error> {
    let mut table = Table::new(&[
        "LG-ID",
        "LG-Role",
        "LG-Type",
        "Net-Dev",
        "Link-State",
        "#Conns",
        "CQs",
        "PID",
        "Command",
    ]);
    for group in &answer.link_groups {
        for (role, pid, comm, cqs) in [
            ("CLNT", group.client_pid, &group.client_comm, group.client_cqs),
            ("SERV", group.server_pid, &group.server_comm, group.server_cqs),
        ] {
            table.row([
                &*format!("{:08x}", group.id),
                role,
                "SINGLE",
                NONE,
                &group.state,
                &group.conns.to_string(),
                &cqs.to_string(),
                &pid.to_string(),
                comm,
            ]);
        }
    }
    table.print()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shutdowns_are_written_as_smcss_does() {
        let states = [(1, "<->"), (5, "<-W"), (8, "R->"), (9, "R-W"), (11, "R-W")];
        assert!(states.iter().all(|(state, text)| shutdown(*state) == *text));
    }
}
