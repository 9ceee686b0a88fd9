//! `events`: what became of connections, lately and from now on.

use super::Broker;
use super::pids::Pids;
use super::select::{Seen, Wanted};
use super::table::{Table, plain, print};
use crate::args::Events;
use crate::error::Error;
use crate::filter::Filter;
use crate::say::say;
use serde_json::json;
use shunpike_broker::report::{Event, EventEnd, Events as Answer};
use shunpike_broker::{QueryError, what};
use std::thread;
use std::time::Duration;

/// Between two looks: an event is told of so much later at most.
const PAUSE: Duration = Duration::from_millis(250);

/// Shows the last events, and with `follow` those that come.
pub fn show(broker: &Broker, args: &Events) -> Result<(), Error> {
    let filter: Filter<Wanted> = args.filter.join(" ").parse().map_err(Error::Filter)?;
    // A filter may leave any of them.
    let lately = if filter == Filter::All { args.lines as usize } else { usize::MAX };
    let mut answer = after(broker, 0, lately)?;
    let mut events: Vec<Event> = Vec::new();
    loop {
        let (is_full, next) = (answer.events.len() == FULL, answer.next);
        events.extend(answer.events.into_iter().filter(|event| is_wanted(event, &filter)));
        if !is_full {
            answer = Answer { events: Vec::new(), next, ..answer };
            break;
        }
        answer = after(broker, next, usize::MAX)?;
    }
    events.drain(..events.len().saturating_sub(args.lines as usize));
    if args.format.json {
        events.iter().try_for_each(line)?;
    } else {
        let mut table = Table::new(&HEADING);
        events.iter().for_each(|event| table.row(row(event)));
        table.print()?;
    }
    if !args.follow {
        return Ok(());
    }
    let (mut life, mut next) = (answer.broker, answer.next);
    let (mut is_gone, mut other) = (false, None);
    loop {
        thread::sleep(PAUSE);
        if is_gone {
            // It may be another process by then, and call others by other numbers.
            other = Some(Broker { pids: Pids::of(&broker.socket), socket: broker.socket.clone() });
        }
        let asked = other.as_ref().unwrap_or(broker);
        let news = after(asked, next, usize::MAX).and_then(|answer| {
            let is_others = answer.broker != life;
            // Another broker counts from the beginning.
            if is_others { after(asked, 0, usize::MAX) } else { Ok(answer) }
        });
        let answer = match news {
            Ok(answer) => answer,
            Err(error) if is_passing(&error) => {
                if !std::mem::replace(&mut is_gone, true) {
                    say(plain(&format!("{error}; events go on when it answers again")));
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        is_gone = false;
        if answer.broker != life {
            life.clone_from(&answer.broker);
        } else if answer.is_missing {
            say("events are missing here: more came than the broker keeps");
        }
        next = answer.next;
        for event in answer.events.iter().filter(|event| is_wanted(event, &filter)) {
            if args.format.json { line(event)? } else { print(&padded(row(event)))? }
        }
    }
}

/// Whether the broker may answer later: it is being started anew, or has much to do.
fn is_passing(error: &Error) -> bool {
    use QueryError::{Broken, CutOff, TurnedAway};
    matches!(error, Error::NoBroker { .. } | Error::Query(Broken { .. } | CutOff { .. } | TurnedAway { .. }))
}

/// As many are in an answer at most, if there are more.
const FULL: usize = 1000;

fn after(broker: &Broker, since: u64, lately: usize) -> Result<Answer, Error> {
    broker.answer(what::EVENTS, &format!("{since} {lately}"))
}

/// Whether one of the ends that are shown is asked for.
fn is_wanted(event: &Event, filter: &Filter<Wanted>) -> bool {
    let holds = |end: &EventEnd, wanted: &Wanted| {
        let EventEnd { pid, uid, comm, local, remote, .. } = end;
        wanted.holds(&Seen { pid: *pid, uid: *uid, comm, local, remote, has_lane: event.event == "opened" })
    };
    event.ends.iter().any(|end| filter.admits(&|wanted: &Wanted| holds(end, wanted)))
}

/// A JSON object in a line.
fn line(event: &Event) -> Result<(), Error> {
    print(&json!(event).to_string())
}

const HEADING: [&str; 6] = ["Time", "Event", "After", "Client", "Server", "Why"];
/// Widths of lines that come one by one, about those of a table; the last column has none.
const WIDTHS: [usize; 5] = [26, 11, 10, 40, 40];

fn padded(row: [String; 6]) -> String {
    let (columns, last) = row.split_at(WIDTHS.len());
    let columns = columns.iter().zip(WIDTHS).map(|(cell, width)| format!("{cell:width$}"));
    let line: String = columns.chain(last.iter().cloned()).collect();
    line.trim_end().to_owned()
}

fn row(event: &Event) -> [String; 6] {
    let end = |role: &str| event.ends.iter().find(|end| end.role == role);
    let [client, server] = ["client", "server"].map(end);
    // Of an end that is not to be seen the other one knows the address.
    let place = |own: Option<&EventEnd>, other: Option<&EventEnd>| match (own, other) {
        (Some(own), _) => format!("{} {}/{}", own.local, own.pid, own.comm),
        (None, Some(other)) => other.remote.clone(),
        (None, None) => String::new(),
    };
    let why = event.reason.as_ref().map_or(String::new(), |reason| {
        let by = event.by.as_deref().unwrap_or("broker");
        format!("0x{:08x} {} ({by})", reason.code, reason.text)
    });
    [
        utc(event.time_ms),
        event.event.clone(),
        event.after_us.map_or(String::new(), duration),
        place(client, server),
        place(server, client),
        why,
    ]
}

fn duration(us: u64) -> String {
    match us {
        0..1000 => format!("{us}us"),
        1000..1_000_000 => format!("{}.{}ms", us / 1000, us / 100 % 10),
        1_000_000..60_000_000 => format!("{}.{}s", us / 1_000_000, us / 100_000 % 10),
        _ => format!("{}m{}s", us / 60_000_000, us / 1_000_000 % 60),
    }
}

/// A time as RFC 3339 writes it.
fn utc(ms: u64) -> String {
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    // Years that begin in March, so that the odd day is the last one (Hinnant's civil_from_days).
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_798_761_599_001, "2026-12-31T23:59:59.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(ms), text);
        }
    }

    #[test]
    fn durations_have_the_unit_that_suits_them() {
        let texts = [999, 1500, 2_340_000, 61_000_000].map(duration);
        assert_eq!(texts, ["999us", "1.5ms", "2.3s", "1m1s"]);
    }
}
