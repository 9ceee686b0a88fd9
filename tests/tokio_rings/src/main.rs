//! Echo over TCP by a runtime that has an io_uring: `PROGRAM WAY server|client PORT CONNECTIONS`.
//!
//! WAY `files`: tokio, which waits for its sockets by epoll, and whose files are read and written by a ring. That is set up by the first
//! file, in the middle of the dialogues. WAY `sockets`: tokio-uring, whose ring moves the bytes of the sockets, too.

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

const ROUNDS: usize = 150;
const SIZES: [usize; 4] = [1, 100, 3000, 20000];
/// So many bytes of a connection come before the server's first file.
const FILE_AFTER: usize = 300_000;

/// The same bytes in every run: a linear congruential generator's.
fn source(mut state: u32) -> impl FnMut(usize) -> Vec<u8> {
    let mut byte = move || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 24) as u8
    };
    move |count| (0..count).map(|_| byte()).collect()
}

fn check(back: &[u8], sent: &[u8]) -> Result<()> {
    if back == sent {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::InvalidData, "the echo is not what was sent"))
    }
}

mod files {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    pub async fn serve(address: SocketAddr, connections: u32) -> Result<()> {
        let listener = TcpListener::bind(address).await?;
        let mut served = Vec::new();
        for number in 0..connections {
            let (stream, _) = listener.accept().await?;
            served.push(tokio::spawn(echo(stream, std::env::temp_dir().join(format!("echo-{number}")))));
        }
        for one in served {
            one.await??;
        }
        Ok(())
    }

    async fn echo(mut stream: TcpStream, file: PathBuf) -> Result<()> {
        stream.set_nodelay(true)?;
        let (mut bytes, mut total) = ([0; 65536], 0);
        loop {
            let n = stream.read(&mut bytes).await?;
            if n == 0 {
                return Ok(());
            }
            if (total..total + n).contains(&FILE_AFTER) {
                tokio::fs::write(&file, &bytes[..n]).await?;
                assert_eq!(tokio::fs::read(&file).await?, bytes[..n]);
                tokio::fs::remove_file(&file).await?;
            }
            total += n;
            stream.write_all(&bytes[..n]).await?;
        }
    }

    async fn talk(address: SocketAddr, index: u32) -> Result<()> {
        let mut bytes = source(index);
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (mut from, mut to) = stream.into_split();
        for round in 0..ROUNDS {
            let sent = bytes(SIZES[round % 4] + index as usize);
            let mut back = vec![0; sent.len()];
            let message = sent.clone();
            let written = tokio::spawn(async move { to.write_all(&message).await.map(|()| to) });
            from.read_exact(&mut back).await?;
            to = written.await??;
            check(&back, &sent)?;
        }
        Ok(())
    }

    pub async fn connect(address: SocketAddr, connections: u32) -> Result<()> {
        let talks: Vec<_> = (0..connections).map(|index| tokio::spawn(talk(address, index))).collect();
        for (index, one) in talks.into_iter().enumerate() {
            one.await??;
            println!("{index}");
        }
        Ok(())
    }
}

mod sockets {
    use std::rc::Rc;

    use tokio_uring::buf::BoundedBuf;
    use tokio_uring::net::{TcpListener, TcpStream};

    use super::*;

    pub async fn serve(address: SocketAddr, connections: u32) -> Result<()> {
        let listener = TcpListener::bind(address)?;
        let mut served = Vec::new();
        for _ in 0..connections {
            served.push(tokio_uring::spawn(echo(listener.accept().await?.0)));
        }
        for one in served {
            one.await??;
        }
        Ok(())
    }

    async fn echo(stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut bytes = vec![0; 65536];
        loop {
            let (n, read) = stream.read(bytes).await;
            let n = n?;
            if n == 0 {
                return Ok(());
            }
            let (written, slice) = stream.write_all(read.slice(..n)).await;
            written?;
            bytes = slice.into_inner();
        }
    }

    async fn talk(address: SocketAddr, index: u32) -> Result<()> {
        let mut bytes = source(index);
        let stream = Rc::new(TcpStream::connect(address).await?);
        stream.set_nodelay(true)?;
        for round in 0..ROUNDS {
            let sent = bytes(SIZES[round % 4] + index as usize);
            let (writer, message) = (stream.clone(), sent.clone());
            let written = tokio_uring::spawn(async move { writer.write_all(message).await.0 });
            let mut back = Vec::new();
            while back.len() < sent.len() {
                let (n, part) = stream.read(vec![0; sent.len() - back.len()]).await;
                match n? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    n => back.extend_from_slice(&part[..n]),
                }
            }
            written.await??;
            check(&back, &sent)?;
        }
        Ok(())
    }

    pub async fn connect(address: SocketAddr, connections: u32) -> Result<()> {
        let talks: Vec<_> = (0..connections).map(|index| tokio_uring::spawn(talk(address, index))).collect();
        for (index, one) in talks.into_iter().enumerate() {
            one.await??;
            println!("{index}");
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, way, role, port, connections] = &words[..] else {
        panic!("usage: WAY server|client PORT CONNECTIONS")
    };
    let address = (Ipv4Addr::LOCALHOST, port.parse().expect("a port")).into();
    let connections = connections.parse().expect("a number of connections");
    match (way.as_str(), role.as_str()) {
        ("sockets", "server") => tokio_uring::start(sockets::serve(address, connections)),
        ("sockets", "client") => tokio_uring::start(sockets::connect(address, connections)),
        ("files", role) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            match role {
                "server" => runtime.block_on(files::serve(address, connections)),
                _ => runtime.block_on(files::connect(address, connections)),
            }
        }
        _ => panic!("WAY is files or sockets"),
    }
}
