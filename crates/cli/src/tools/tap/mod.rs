//! `tap`: what goes over lanes, as a capture that Wireshark and tshark read, or as text.

pub mod extcap;
mod filter;
mod output;
mod packet;
mod pcapng;
mod rings;
mod streams;

use super::pids::Pids;
use crate::args::Tap;
use crate::error::Error;
use crate::filter::Filter;
use crate::replace::{Place, denied};
use crate::say::say;
use crate::signals;
use crate::{socket, standard};
use filter::{Subject, Wanted};
use output::{Output, Written};
use packet::Packet;
use rings::{News, Process, Rings, Seen, now};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::time::Timespec;
use shunpike_broker::{TapSession, query, report, what};
use shunpike_shm::tap;
use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use streams::{Ends, Streams, ends};

/// How often rings are looked at.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// How often a capture says how many were lost, if more were.
const ACCOUNT: Duration = Duration::from_secs(1);
/// How often the broker is asked whose a connection is that is new.
const ASK: Duration = Duration::from_millis(100);
/// Connections whose processes are remembered.
const KNOWN: usize = 1 << 18;
/// Bytes of a segment that its line of text shows.
const PREVIEW: usize = 48;

/// What is to be done.
pub struct Options {
    /// Which segments.
    pub filter: Filter<Wanted>,
    /// Bytes of each process's ring.
    pub buffer: usize,
    /// End after so many segments.
    pub count: Option<u64>,
}

/// Size class of the smallest ring that holds so many bytes.
fn class(bytes: usize) -> u8 {
    (0..tap::MAX_CLASS).find(|class| tap::ring_size(*class) >= bytes).unwrap_or(tap::MAX_CLASS)
}

/// `shunpike tap`.
pub fn tap(args: &Tap, named: Option<PathBuf>) -> Result<(), Error> {
    let filter = args.filter.join(" ").parse().map_err(Error::Filter)?;
    let options = Options { filter, buffer: args.buffer, count: args.count };
    let kind = match &args.write {
        None => Kind::Text,
        Some(_) => Kind::Capture,
    };
    let file = args.write.as_deref().filter(|path| *path != Path::new("-"));
    let to = match file {
        Some(path) => capture(path).map_err(|source| Error::Write { path: path.to_owned(), source })?,
        None if kind == Kind::Capture && io::stdout().is_terminal() => return Err(Error::Terminal),
        None => standard::output()?.as_fd().try_clone_to_owned().map_err(Error::Output)?,
    };
    run(&options, kind, Sink { to, file }, named)
}

/// The file of a capture, or a FIFO. What is in it is nobody else's business: whoever has made one of that name before does not get it.
/// Errors: another user's.
pub(super) fn capture(path: &Path) -> io::Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    let place = Place::of(path)?;
    // Before it is opened: that would wait for a FIFO's reader.
    if let Ok(there) = place.metadata() {
        refuse_others(&place, &there)?;
    }
    let file = place.open(OFlags::WRONLY | OFlags::CREATE, mode)?;
    let there = rustix::fs::fstat(&file)?;
    refuse_others(&place, &there)?;
    if FileType::from_raw_mode(there.st_mode) == FileType::RegularFile {
        rustix::fs::fchmod(&file, mode)?;
        rustix::fs::ftruncate(&file, 0)?;
    }
    Ok(file)
}

/// Errors: it is another user's. Not so one of root's devices, as /dev/null, nor the pipe or terminal that the caller was given, which
/// under sudo is the user's.
fn refuse_others(place: &Place, there: &rustix::fs::Stat) -> io::Result<()> {
    let kind = FileType::from_raw_mode(there.st_mode);
    let is_given = place.is_open_already() && kind != FileType::RegularFile;
    let is_device = kind == FileType::CharacterDevice && there.st_uid == 0;
    if there.st_uid == rustix::process::geteuid().as_raw() || is_given || is_device {
        return Ok(());
    }
    Err(denied(&format!("it is there, and uid {}'s", there.st_uid)))
}

/// Where it is written.
struct Sink<'a> {
    to: OwnedFd,
    /// The file's name; `None`: standard output.
    file: Option<&'a Path>,
}

/// What is written.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Kind {
    Capture,
    Text,
}

/// Writes to the sink until it is told to end, nobody reads any more, or `options.count` is reached.
fn run(options: &Options, kind: Kind, sink: Sink<'_>, named: Option<PathBuf>) -> Result<(), Error> {
    let stop = signals::stop_signals().map_err(Error::Signals)?;
    let socket = socket::answering(named)?;
    let session = TapSession::begin(&socket)?;
    let rings = Rings::new(session, Pids::of(&socket), socket.clone(), class(options.buffer))?;
    let mut tap = Tapping {
        kind,
        count: options.count.unwrap_or(u64::MAX),
        whose: Whose { pids_here: Pids::of(&socket), socket, asked: None, pids: HashMap::new() },
        filter: options.filter.clone(),
        output: Output::new(sink.to),
        file: sink.file.map(Path::to_owned),
        streams: Streams::default(),
        processes: HashMap::new(),
        interfaces: 0,
        shown: 0,
        untaken: 0,
        stop,
        failed: false,
        began: wall_clock_offset(),
        accounted: Instant::now(),
    };
    if kind == Kind::Capture {
        pcapng::section(tap.output.buffer(), concat!("shunpike ", env!("CARGO_PKG_VERSION")));
    }
    say("waiting for programs under Shunpike; Ctrl-C ends");
    tap.work(rings)
}

/// What CLOCK_MONOTONIC lacks of the time since 1970, nanoseconds.
fn wall_clock_offset() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (wall.as_nanos() as u64).wrapping_sub(now())
}

/// A process and its part of the capture.
struct Shown {
    process: Process,
    /// Number of its interface.
    interface: u32,
    /// Segments that were there to be seen, lost or not; and those told of as lost.
    received: u64,
    dropped: u64,
}

struct Tapping {
    kind: Kind,
    count: u64,
    filter: Filter<Wanted>,
    whose: Whose,
    output: Output,
    /// What it is called, where it is a file.
    file: Option<PathBuf>,
    streams: Streams,
    /// By their rings' numbers.
    processes: HashMap<u32, Shown>,
    interfaces: u32,
    shown: u64,
    /// Segments that came when whoever reads took no more.
    untaken: u64,
    /// Readable once the tap is told to end.
    stop: OwnedFd,
    /// A process wrote nonsense, or ended within a record.
    failed: bool,
    began: u64,
    accounted: Instant,
}

impl Tapping {
    fn work(&mut self, mut rings: Rings) -> Result<(), Error> {
        let told_to_end = loop {
            let heard = rings.hear(|news| self.tell(news));
            self.take(&mut rings)?;
            let heard = heard.and_then(|()| rings.offer_more(|news| self.tell(news)));
            self.account(&rings, false);
            let written = self.flush()?;
            if written != Written::Yes || self.count == 0 {
                break written != Written::Closed;
            }
            if let Err(gone) = heard {
                self.finish(&mut rings)?;
                return Err(gone);
            }
            let mut fds = [PollFd::new(&self.stop, PollFlags::IN), PollFd::new(&rings, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&PAUSE));
            if fds[0].revents().contains(PollFlags::IN) {
                break true;
            }
            if self.output.is_closed() {
                break false;
            }
        };
        if told_to_end { self.finish(&mut rings) } else { self.sum_up(&rings) }
    }

    /// Writes what is to be written, unless told to end meanwhile: the loop finds out.
    fn flush(&mut self) -> Result<Written, Error> {
        self.output.flush(self.stop.as_fd()).map_err(|errno| match &self.file {
            Some(path) => Error::Write { path: path.clone(), source: errno.into() },
            None => Error::Output(errno.into()),
        })
    }

    /// Shows what is in the rings.
    fn take(&mut self, rings: &mut Rings) -> Result<(), Error> {
        let (seen, news) = rings.read();
        self.show(seen)?;
        news.into_iter().for_each(|news| self.tell(news));
        Ok(())
    }

    fn show(&mut self, seen: Vec<Seen>) -> Result<(), Error> {
        if self.filter.has(&Wanted::is_of_processes) {
            // Of both directions before the first is shown: an answer tells whose its question was, too.
            for seen in &seen {
                let sender = self.processes.get(&seen.ring).map(|shown| shown.process.pid);
                self.whose.learn(ends(&seen.segment), sender);
            }
        }
        seen.into_iter().try_for_each(|seen| self.see(seen))
    }

    /// What was sent before is still shown, as far as whoever reads takes it.
    fn finish(&mut self, rings: &mut Rings) -> Result<(), Error> {
        self.output.end();
        // Where the broker is gone, it has told all that it will.
        let _ = rings.hear(|news| self.tell(news));
        self.take(rings)?;
        let (rest, has_more) = rings.rest();
        self.show(rest)?;
        if has_more {
            say("a process was tapped of which the broker has not told: what it sent is not shown");
            self.failed = true;
        }
        self.account(rings, true);
        self.flush()?;
        self.sum_up(rings)
    }

    fn sum_up(&self, rings: &Rings) -> Result<(), Error> {
        let ((lost, bytes), connections) = (rings.lost(), self.streams.connections);
        let missed = self.streams.missed;
        say(format!(
            "{} segments of {connections} connections; lost for want of room: {lost} ({bytes} bytes); {missed} bytes are \
             missing from what is shown",
            self.shown
        ));
        if lost > 0 {
            say("a larger --buffer loses less");
        }
        if let Some(bytes) = self.output.untaken() {
            say(format_args!(
                "whoever reads took no more: the last {bytes} bytes are not written, and {} segments after them not shown",
                self.untaken
            ));
        }
        if self.failed {
            say("not all that was sent can be shown: see above");
        }
        Ok(())
    }

    fn name(&self, ring: u32) -> String {
        let process = self.processes.get(&ring).map(|shown| &shown.process);
        process.map_or("a process".to_owned(), |process| format!("{} (PID {})", process.comm, process.pid))
    }

    fn tell(&mut self, news: News) {
        match news {
            News::Began { ring, process } => {
                say(format!("tapping {} (PID {}, uid {})", process.comm, process.pid, process.uid));
                let interface = self.interfaces;
                if self.kind == Kind::Capture {
                    self.interfaces += 1;
                    let description =
                        format!("{}, process {}, uid {}", process.comm, process.pid, process.uid);
                    let name = format!("{}/{}", process.pid, process.comm);
                    pcapng::interface(self.output.buffer(), &name, &description);
                }
                self.processes.insert(ring, Shown { process, interface, received: 0, dropped: 0 });
            }
            News::Guarded { ring } => {
                say(format!(
                    "{} does not let its own user look into it: not tapped; root may",
                    self.name(ring)
                ));
            }
            News::Failed { ring } => say(format!("{} could not map its ring: not tapped", self.name(ring))),
            News::Nonsense { ring } => {
                say(format!("{} wrote nonsense into its ring: nothing more is read of it", self.name(ring)));
                self.failed = true;
            }
            News::Over { ring, unfinished, lost } => {
                self.count_lost(ring, lost, true);
                if unfinished {
                    say(format!(
                        "{} ended within a record: the rest of what it sent is lost",
                        self.name(ring)
                    ));
                    self.failed = true;
                }
                self.processes.remove(&ring);
            }
            News::Small => say(
                "rings of --buffer for more processes would take too much memory: those of others have 256 KiB; a smaller \
                 --buffer is for more",
            ),
            News::Crowd => {
                say("no more processes are tapped: as many are as can be at a time");
                self.failed = true;
            }
        }
    }

    fn see(&mut self, seen: Seen) -> Result<(), Error> {
        let Seen { ring, segment, bytes, dropped } = seen;
        let Some(shown) = self.processes.get_mut(&ring) else { return Ok(()) };
        shown.received += 1;
        let pids = self.whose.of(ends(&segment));
        let subject = Subject { from: segment.local, to: segment.remote, pids };
        if self.count == 0 || !self.filter.admits(&|wanted: &Wanted| wanted.holds(&subject)) {
            return Ok(());
        }
        if self.output.is_over() {
            self.untaken += u64::from(!bytes.is_empty());
            return Ok(());
        }
        let (kind, out) = (self.kind, self.output.buffer());
        let ns = self.began.wrapping_add(segment.time);
        let mut first = dropped;
        let mut raw = Vec::new();
        let result = self.streams.show(&segment, &bytes, |packet| {
            let dropped = std::mem::take(&mut first);
            match kind {
                Kind::Capture => {
                    raw.clear();
                    packet.write(&mut raw);
                    let comment = packet.comment.as_deref();
                    pcapng::packet(out, shown.interface, ns, &raw, dropped, comment);
                }
                Kind::Text => line(out, ns, packet, &shown.process),
            }
            Ok::<(), Error>(())
        });
        if !bytes.is_empty() {
            self.shown += 1;
            self.count -= 1;
        }
        if self.output.is_full() {
            self.flush()?;
        }
        result
    }

    /// How many were lost, where that has changed and it is time, or at the end.
    fn account(&mut self, rings: &Rings, at_the_end: bool) {
        if self.kind != Kind::Capture || !(at_the_end || self.accounted.elapsed() >= ACCOUNT) {
            return;
        }
        self.accounted = Instant::now();
        for (ring, lost) in rings.losses() {
            self.count_lost(ring, lost, at_the_end);
        }
    }

    fn count_lost(&mut self, ring: u32, lost: u64, at_the_end: bool) {
        let Some(shown) = self.processes.get_mut(&ring).filter(|_| self.kind == Kind::Capture) else {
            return;
        };
        if lost != shown.dropped || at_the_end {
            shown.dropped = lost;
            let (ns, received) = (self.began.wrapping_add(now()), shown.received.saturating_add(lost));
            pcapng::statistics(self.output.buffer(), shown.interface, ns, received, lost);
        }
    }
}

/// One line of text: time of day (UTC), ends, numbers as in the capture, the sender, the data's beginning.
fn line(out: &mut Vec<u8>, ns: u64, packet: &Packet<'_>, process: &Process) {
    use std::io::Write;
    let seconds = ns / 1_000_000_000;
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    let (seconds, micros) = (seconds % 60, ns / 1000 % 1_000_000);
    let flag = |bit, letter: &'static str| if packet.flags & bit != 0 { letter } else { "" };
    let flags = [
        flag(packet::tcp::SYN, "S"),
        flag(packet::tcp::FIN, "F"),
        flag(packet::tcp::PSH, "P"),
        flag(packet::tcp::ACK, "."),
    ]
    .concat();
    let shown = packet.data.get(..PREVIEW).unwrap_or(packet.data).escape_ascii();
    let more = if packet.data.len() > PREVIEW { "..." } else { "" };
    let comment = packet.comment.as_ref().map_or(String::new(), |comment| format!(" ({comment})"));
    // Into memory: cannot fail.
    let _ = writeln!(
        out,
        "{hours:02}:{minutes:02}:{seconds:02}.{micros:06} {} > {}: [{flags}] seq {} ack {} len {} {}/{} \"{shown}\"{more}{comment}",
        packet.from,
        packet.to,
        packet.seq,
        packet.ack,
        packet.data.len(),
        process.comm,
        process.pid,
    );
}

/// The processes of connections, for filters that ask for them.
struct Whose {
    socket: PathBuf,
    pids_here: Pids,
    asked: Option<Instant>,
    pids: HashMap<Ends, Vec<u32>>,
}

impl Whose {
    /// The processes at the two ends, as far as they are known.
    fn of(&self, ends: Ends) -> &[u32] {
        self.pids.get(&ends).map_or(&[], Vec::as_slice)
    }

    /// A process sends on a connection; the broker may know who is at the other end.
    fn learn(&mut self, ends: Ends, sender: Option<u32>) {
        if self.pids.len() >= KNOWN {
            self.pids.clear();
        }
        sender.into_iter().for_each(|pid| self.add(ends, pid));
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= ASK);
        if is_due && self.of(ends).len() < 2 {
            self.asked = Some(Instant::now());
            self.ask();
        }
    }

    fn add(&mut self, ends: Ends, pid: u32) {
        let pids = self.pids.entry(ends).or_default();
        if !pids.contains(&pid) {
            pids.push(pid);
        }
    }

    /// What the broker does not say now it may say the next time.
    fn ask(&mut self) {
        let Ok(text) = query(&self.socket, what::SS, "") else { return };
        let Ok(mut answer) = serde_json::from_str(&text) else { return };
        if !self.pids_here.is_same() {
            self.pids_here.translate(&mut answer);
        }
        let Ok(report::Connections { connections, .. }) = serde_json::from_value(answer) else { return };
        for connection in connections {
            let (Ok(local), Ok(remote)) =
                (connection.local.parse::<SocketAddr>(), connection.remote.parse::<SocketAddr>())
            else {
                continue;
            };
            let ends = if connection.role == "client" { (local, remote) } else { (remote, local) };
            self.add(ends, connection.pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

    #[test]
    fn a_capture_goes_into_nobody_elses_file() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "before").expect("written");
        fs::set_permissions(&file, Permissions::from_mode(0o666)).expect("mode");
        symlink(&file, &link).expect("link");
        for path in [&file, &link, &dir.path().join("new")] {
            drop(capture(path).expect("our own"));
            let there = fs::metadata(path).expect("there");
            assert_eq!((there.len(), there.mode() & 0o777), (0, 0o600));
        }
        // Only root can give a file away.
        if rustix::process::geteuid().is_root() {
            fs::write(&file, "before").expect("written");
            lchown(&link, Some(1), None).expect("given away");
            assert!(capture(&link).is_err(), "another's link");
            chown(&file, Some(1), None).expect("given away");
            assert!(capture(&file).is_err(), "another's file");
            assert_eq!(fs::read(&file).expect("readable"), b"before");
            let fifo = dir.path().join("fifo");
            rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
                .expect("a FIFO");
            chown(&fifo, Some(1), None).expect("given away");
            assert!(capture(&fifo).is_err(), "another's FIFO");
            let (_reads, given) = rustix::pipe::pipe().expect("a pipe");
            rustix::fs::fchown(&given, Some(rustix::fs::Uid::from_raw(1)), None).expect("given away");
            capture(Path::new(&format!("/proc/self/fd/{}", given.as_raw_fd())))
                .expect("the caller's own pipe");
        }
    }

    #[test]
    fn a_ring_has_the_room_that_was_asked_for() {
        for bytes in [256 << 10, 4 << 20, 32 << 20, 300_000] {
            assert!(tap::ring_size(class(bytes)) >= bytes);
        }
    }

    #[test]
    fn a_line_shows_the_beginning_of_what_was_sent() {
        let address = |text: &str| text.parse().expect("address");
        let data = [b'x'; 60];
        let packet = Packet {
            from: address("127.0.0.1:4000"),
            to: address("[::1]:80"),
            seq: 1,
            ack: 2,
            flags: packet::tcp::ACK | packet::tcp::PSH,
            data: &data,
            comment: Some("why".into()),
        };
        let mut out = Vec::new();
        let process = Process { pid: 4, uid: 0, comm: "cat".into() };
        line(&mut out, (3600 + 62) * 1_000_000_000 + 5_000, &packet, &process);
        let wanted = format!(
            "01:01:02.000005 127.0.0.1:4000 > [::1]:80: [P.] seq 1 ack 2 len 60 cat/4 \"{}\"... (why)\n",
            "x".repeat(PREVIEW)
        );
        assert_eq!(String::from_utf8(out).expect("text"), wanted);
    }
}
