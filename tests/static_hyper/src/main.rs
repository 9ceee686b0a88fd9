//! A server that gives back what it is sent, by HTTP, on threads of tokio's; and its client.
//!
//!     static-hyper serve                            prints its port
//!     static-hyper ask PORT CONNECTIONS REQUESTS    prints "done"
use std::convert::Infallible;
use std::net::Ipv4Addr;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    Ok(Response::new(Full::new(request.into_body().collect().await?.to_bytes())))
}

async fn serve() -> Result<Infallible, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer)),
        );
    }
}

async fn ask(port: u16, number: usize, requests: usize) -> Result<(), Failure> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    for n in 0..requests {
        let body: Vec<u8> = (0..(n * n * 31 + number) % 60_000).map(|at| (at * n) as u8).collect();
        let request = Request::post("/").header("host", "localhost").body(Full::new(Bytes::from(body.clone())))?;
        let got = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
        if got != body {
            return Err("another answer".into());
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_io().build()?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve"] => runtime.block_on(serve()).map(drop),
        ["ask", port, connections, requests] => {
            let (port, requests) = (port.parse()?, requests.parse()?);
            let all: Vec<_> =
                (0..connections.parse()?).map(|number| runtime.spawn(ask(port, number, requests))).collect();
            for one in all {
                runtime.block_on(one)??;
            }
            println!("done");
            Ok(())
        }
        _ => Err("serve, or ask PORT CONNECTIONS REQUESTS".into()),
    }
}
