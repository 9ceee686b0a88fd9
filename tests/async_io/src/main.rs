//! An echo server on async-io, which waits by system calls of its own (polling, on rustix): `PROGRAM PORT`, until its one client has ended.
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use async_io::{block_on, Async};
use futures_lite::{AsyncReadExt, AsyncWriteExt};

fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args().nth(1).and_then(|port| port.parse().ok()).expect("a port");
    block_on(async {
        let listener = Async::<TcpListener>::bind((Ipv4Addr::LOCALHOST, port))?;
        let (mut stream, _): (Async<TcpStream>, _) = listener.accept().await?;
        let mut bytes = [0; 4096];
        loop {
            let n = stream.read(&mut bytes).await?;
            if n == 0 {
                return Ok(());
            }
            stream.write_all(&bytes[..n]).await?;
        }
    })
}
