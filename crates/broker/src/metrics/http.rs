//! As much of HTTP/1 as a scraper needs: one GET, one answer, closed.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::rc::Rc;
use std::time::Instant;

/// Largest request, bytes; scrapers send a few hundred.
const LARGEST: usize = 8192;

/// What a scrape waits for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// More of the request.
    Reads,
    /// The text: see [`Scrape::answer`].
    Asks,
    /// Room for the rest of the answer.
    Writes,
    /// Nothing: it is answered, or gone.
    Over,
}

/// One scraper's connection.
pub struct Scrape {
    /// When it has to be done.
    pub until: Instant,
    /// Whether it waits for the text.
    pub awaits: bool,
    socket: OwnedFd,
    request: Vec<u8>,
    answer: Option<Answer>,
}

struct Answer {
    head: String,
    body: Rc<str>,
    sent: usize,
}

impl Scrape {
    /// A connection just accepted, non-blocking.
    pub fn new(socket: OwnedFd, until: Instant) -> Self {
        Self { until, awaits: false, socket, request: Vec::new(), answer: None }
    }

    /// Reads or writes as far as it goes at once.
    pub fn go_on(&mut self) -> Step {
        if self.answer.is_some() {
            return self.write();
        }
        // One read a turn: whoever sends in drops or without end takes no more than its share.
        let mut chunk = [0; 2048];
        match rustix::net::recv(&self.socket, &mut chunk[..], RecvFlags::empty()) {
            Ok((0, _)) => return Step::Over,
            Ok((n, _)) => self.request.extend_from_slice(chunk.get(..n).unwrap_or(&[])),
            Err(Errno::AGAIN | Errno::INTR) => return Step::Reads,
            Err(_) => return Step::Over,
        }
        let is_whole =
            [&b"\r\n\r\n"[..], b"\n\n"].iter().any(|end| self.request.windows(end.len()).any(|w| w == *end));
        match (is_whole, self.request.len() > LARGEST) {
            (false, false) => Step::Reads,
            (false, true) => self.refuse("431 Request Header Fields Too Large", ""),
            (true, _) => self.route(),
        }
    }

    fn route(&mut self) -> Step {
        let line = self.request.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let (method, target, version) = (words.next(), words.next(), words.next());
        let path = target.map(|target| target.split(|byte| *byte == b'?').next().unwrap_or_default());
        match (method, path, version) {
            (_, _, None) => self.refuse("400 Bad Request", ""),
            (Some(b"GET"), Some(b"/metrics"), _) => Step::Asks,
            (Some(b"GET"), _, _) => self.refuse("404 Not Found", ""),
            _ => self.refuse("405 Method Not Allowed", "Allow: GET\r\n"),
        }
    }

    /// Answers with `text`.
    pub fn answer(&mut self, text: &Rc<str>) -> Step {
        self.awaits = false;
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        self.begin("200 OK", &format!("Content-Type: {kind}\r\n"), Rc::clone(text))
    }

    fn refuse(&mut self, status: &str, more: &str) -> Step {
        let body = format!("{status}: GET /metrics is all that there is\n");
        self.begin(status, &format!("Content-Type: text/plain; charset=utf-8\r\n{more}"), body.into())
    }

    fn begin(&mut self, status: &str, headers: &str, body: Rc<str>) -> Step {
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n");
        self.answer = Some(Answer { head, body, sent: 0 });
        self.write()
    }

    fn write(&mut self) -> Step {
        let Some(answer) = &mut self.answer else { return Step::Over };
        loop {
            let (head, body) = (answer.head.as_bytes(), answer.body.as_bytes());
            let rest = match head.get(answer.sent..) {
                Some(rest) if !rest.is_empty() => rest,
                _ => body.get(answer.sent - head.len()..).unwrap_or(&[]),
            };
            if rest.is_empty() {
                let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
                return Step::Over;
            }
            match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(n) => answer.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Step::Writes,
                Err(_) => return Step::Over,
            }
        }
    }
}

impl AsFd for Scrape {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn scrape() -> (UnixStream, Scrape) {
        let (client, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        (client, Scrape::new(server.into(), Instant::now()))
    }

    fn answered(request: &[u8]) -> String {
        let (mut client, mut scrape) = scrape();
        client.write_all(request).unwrap();
        let mut step = scrape.go_on();
        while step == Step::Reads {
            step = scrape.go_on();
        }
        if step == Step::Asks {
            step = scrape.answer(&"metrics\n".into());
        }
        assert_eq!(step, Step::Over);
        drop(scrape);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_get_is_answered_and_everything_else_is_told_so() {
        for (request, status) in [
            (&b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"[..], "200 OK"),
            (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", "200 OK"),
            (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            (b"\xff\xfe\r\n\r\n", "400 Bad Request"),
            (&[b'a'; LARGEST + 1], "431 Request Header Fields Too Large"),
        ] {
            let text = answered(request);
            assert!(text.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{text}");
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}", body.len())), "{text}");
        }
        assert!(answered(b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nmetrics\n"));
    }

    #[test]
    fn a_request_in_drops_is_waited_for_and_a_lost_one_ends() {
        let (mut client, mut scrape) = scrape();
        assert_eq!(scrape.go_on(), Step::Reads);
        for byte in b"GET /metrics HTTP/1.1\r\n\r" {
            client.write_all(&[*byte]).unwrap();
            assert_eq!(scrape.go_on(), Step::Reads);
        }
        client.write_all(b"\n").unwrap();
        assert_eq!(scrape.go_on(), Step::Asks);
        let (client, mut scrape) = self::scrape();
        drop(client);
        assert_eq!(scrape.go_on(), Step::Over);
    }

    #[test]
    fn who_reads_slowly_gets_all_of_it() {
        let (mut client, mut scrape) = scrape();
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(scrape.go_on(), Step::Asks);
        let text: Rc<str> = "x".repeat(4 << 20).into();
        let mut step = scrape.answer(&text);
        let mut got = Vec::new();
        while step == Step::Writes {
            let mut chunk = [0; 4096];
            let n = client.read(&mut chunk).unwrap();
            got.extend_from_slice(&chunk[..n]);
            step = scrape.go_on();
        }
        assert_eq!(step, Step::Over);
        client.read_to_end(&mut got).unwrap();
        assert!(got.len() > text.len() && got.ends_with(b"xxx"));
    }
}
