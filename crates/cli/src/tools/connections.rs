//! `ss` and `linkgroup`.

use super::table::Table;
use crate::args::Ss;
use crate::error::Error;
use shunpike_broker::report::{Connection, Connections, Direction, LinkGroups};
use std::fs;

/// What smcss shows where there is nothing to show.
const NONE: &str = "-";

/// Lists connections as smcss does.
pub fn list(answer: Connections, args: &Ss) -> Result<(), Error> {
    let mut heading = vec!["State", "UID", "Inode", "Local-Address", "Peer-Address", "Intf", "Mode"];
    if args.debug {
        heading.extend(["Token", "Rcvbuf", "Peerbuf", "rxprod-Cursor", "rxcons-Cursor", "rxLane"]);
        heading.extend(["txprod-Cursor", "txcons-Cursor", "txLane", "PID", "FD", "Command"]);
    }
    if args.smcd {
        heading.extend(["GID", "Token", "Peer-Token", "Linkid"]);
    }
    let mut table = Table::new(&heading);
    for connection in answer.connections.iter().filter(|connection| is_wanted(connection, args)) {
        let mut row = vec![
            connection.state.clone(),
            connection.uid.to_string(),
            inode(connection).unwrap_or_else(|| NONE.into()),
            connection.local.clone(),
            connection.remote.clone(),
            // loopback-ism has no network interface.
            NONE.into(),
            connection.mode.clone(),
        ];
        if args.debug {
            row.extend(debug_columns(connection));
        }
        if args.smcd {
            let gid = connection.gid.clone().unwrap_or_else(|| NONE.into());
            let link = connection.link.map_or(NONE.into(), |link| format!("{link:08x}"));
            row.extend([gid, connection.rx.token.clone(), connection.tx.token.clone(), link]);
        }
        table.row(row);
    }
    table.print()
}

fn is_wanted(connection: &Connection, args: &Ss) -> bool {
    let is_listening = connection.state == "LISTEN";
    let is_lane = connection.mode == "SMCD";
    (args.all || args.listening == is_listening) && (is_lane || !args.smcd)
}

/// Cursors as seen from this end, in smcss's order: produced, then consumed.
fn debug_columns(connection: &Connection) -> Vec<String> {
    let cursor = |direction: &Direction, at: u64| {
        let (wraps, count) = direction.wrap_count(at);
        format!("{wraps:04x}:{count:08x}")
    };
    let (rx, tx) = (&connection.rx, &connection.tx);
    vec![
        rx.token.clone(),
        rx.ring.to_string(),
        tx.ring.to_string(),
        cursor(rx, rx.peer_cursor),
        cursor(rx, rx.own_cursor),
        format!("{}/{}", rx.mode, rx.generation),
        cursor(tx, tx.own_cursor),
        cursor(tx, tx.peer_cursor),
        format!("{}/{}", tx.mode, tx.generation),
        connection.pid.to_string(),
        connection.fd.to_string(),
        connection.comm.clone(),
    ]
}

/// The socket's inode, where this process may look into the other one.
fn inode(connection: &Connection) -> Option<String> {
    let link = fs::read_link(format!("/proc/{}/fd/{}", connection.pid, connection.fd)).ok()?;
    let name = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
    Some(name.to_owned())
}

/// Lists link groups, with the two processes that each joins.
pub fn link_groups(answer: LinkGroups) -> Result<(), Error> {
    let mut table = Table::new(&["LG-ID", "#Conns", "Max", "Client", "Server"]);
    for group in &answer.link_groups {
        table.row([
            format!("{:08x}", group.id),
            group.conns.to_string(),
            group.max_conns.to_string(),
            format!("{}/{}", group.client_pid, group.client_comm),
            format!("{}/{}", group.server_pid, group.server_comm),
        ]);
    }
    table.print()
}
