//! The process's broker: the real one, on a thread of its own, which turns it only when a test says so.

use shunpike_broker::loopback::LoopbackIsm;
use shunpike_broker::settings::{Origin, Setting};
use shunpike_broker::{Config, Server, clock};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// A test's steps are served in fewer turns.
const TURNS: usize = 256;
/// A helper takes no longer for what is passed here.
const PATIENCE: Duration = Duration::from_millis(50);

enum Order {
    /// Turns until there is nothing to do; the answer is how much there was.
    Turn,
    /// Time passes for it.
    Pass(Duration),
    /// It ends, and another one serves at the same socket.
    Replace,
    /// It ends.
    End,
}

/// The broker's thread, to be given orders.
pub struct Broker {
    orders: Sender<Order>,
    done: Receiver<usize>,
}

impl Broker {
    /// One that serves at a socket of its own, which it says.
    pub fn start() -> (Self, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("broker.sock");
        remove_at_exit(directory);
        let (orders, ordered) = channel();
        let (finished, done) = channel();
        let at = socket.clone();
        std::thread::spawn(move || serve(&at, &ordered, &finished));
        let broker = Self { orders, done };
        broker.turn();
        (broker, socket)
    }

    fn order(&self, order: Order) -> usize {
        self.orders.send(order).expect("the broker's thread is there");
        self.done.recv().expect("the broker's thread did as it was told")
    }

    /// Lets it serve all that was said to it; how much that was.
    pub fn turn(&self) -> usize {
        self.order(Order::Turn)
    }

    /// So much time passes for it.
    pub fn pass(&self, time: Duration) {
        self.order(Order::Pass(time));
    }

    /// Ends it, and starts another one in its place.
    pub fn replace(&self) {
        self.order(Order::Replace);
    }

    /// Ends it. `replace` starts one again.
    pub fn end(&self) {
        self.order(Order::End);
    }
}

/// The broker serves to the process's end, and leaves nothing behind. A child's end is not it.
fn remove_at_exit(directory: TempDir) {
    static DIRECTORY: Mutex<Option<(u32, TempDir)>> = Mutex::new(None);
    extern "C" fn remove() {
        let mut directory = DIRECTORY.lock().unwrap_or_else(PoisonError::into_inner);
        drop(directory.take_if(|(owner, _)| *owner == std::process::id()));
    }
    *DIRECTORY.lock().expect("nobody has it") = Some((std::process::id(), directory));
    // SAFETY: a function that lives as long as the process.
    assert_eq!(unsafe { libc::atexit(remove) }, 0);
}

fn made(socket: &Path) -> Server {
    let mut config = Config::new(socket.to_path_buf());
    // Else it is measured which way is quicker; and the true clock, which goes on, too, is to be far behind.
    let settings = ["lend_bytes=65536", "grace_ms=10000"];
    config.settings =
        settings.map(|text| Setting::parse(text, Origin::CommandLine).expect("a setting")).to_vec();
    Server::new(config, LoopbackIsm::boxed).expect("a broker")
}

fn serve(socket: &Path, orders: &Receiver<Order>, done: &Sender<usize>) {
    clock::pass(Duration::ZERO);
    let mut server = Some(made(socket));
    while let Ok(order) = orders.recv() {
        let served = match order {
            Order::Turn => server.as_mut().map_or(0, turn),
            Order::Pass(time) => {
                clock::pass(time);
                0
            }
            Order::Replace => {
                // First: one path, one broker.
                drop(server.take());
                server = Some(made(socket));
                0
            }
            Order::End => {
                drop(server.take());
                0
            }
        };
        if done.send(served).is_err() {
            break;
        }
    }
}

fn turn(server: &mut Server) -> usize {
    let mut all = 0;
    for _ in 0..TURNS {
        // What a helper works on comes soon.
        let patience = if server.is_busy() { PATIENCE } else { Duration::ZERO };
        match server.turn(patience).expect("it serves").expect("it stays") {
            0 if server.is_busy() => clock::pass(Duration::from_millis(1)),
            0 => {
                server.audit().expect("the broker's tables agree");
                return all;
            }
            served => all += served,
        }
    }
    panic!("the broker is busy after {TURNS} turns");
}
