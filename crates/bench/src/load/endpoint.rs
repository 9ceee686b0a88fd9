//! TCP on the loopback interface, or a UNIX stream socket.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A port of 127.0.0.1.
    Tcp(u16),
    /// A path.
    Unix(PathBuf),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("tcp", port)) => {
                port.parse().map(Endpoint::Tcp).map_err(|_| format!("'{port}' is no port"))
            }
            Some(("unix", path)) if !path.is_empty() => Ok(Endpoint::Unix(path.into())),
            _ => Err("write tcp:PORT or unix:PATH".into()),
        }
    }
}

/// Connections that may wait to be accepted; the kernel bounds it (net.core.somaxconn).
const QUEUE: i32 = 4096;

impl Endpoint {
    pub fn listen(&self) -> io::Result<Listener> {
        match self {
            Endpoint::Tcp(port) => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, *port))?;
                // std's queue of 128 overflows under a storm of connections, which then wait a second each.
                // SAFETY: takes no pointer.
                if unsafe { libc::listen(listener.as_raw_fd(), QUEUE) } < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(Listener::Tcp(listener))
            }
            Endpoint::Unix(path) => UnixListener::bind(path).map(Listener::Unix),
        }
    }

    pub fn connect(&self) -> io::Result<Stream> {
        match self {
            Endpoint::Tcp(port) => Stream::tcp(TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?),
            Endpoint::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
        }
    }
}

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => Stream::tcp(listener.accept()?.0),
            Listener::Unix(listener) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }

    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Unix(listener) => listener.set_nonblocking(true),
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Listener::Tcp(listener) => listener.as_raw_fd(),
            Listener::Unix(listener) => listener.as_raw_fd(),
        }
    }
}

pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Stream::Tcp(stream))
    }

    pub fn end_writing(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(true),
            Stream::Unix(stream) => stream.set_nonblocking(true),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_a_port_or_a_path() {
        assert_eq!("tcp:80".parse(), Ok(Endpoint::Tcp(80)));
        assert_eq!("unix:/a:b".parse(), Ok(Endpoint::Unix("/a:b".into())));
        for wrong in ["", "80", "tcp:", "tcp:65536", "unix:", "udp:1"] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }
}
