//! What the tests of the command line share: the built command in a directory of its own.

#![allow(dead_code, reason = "each test file uses its part")]

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest that anything here may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A directory, a library to preload, and the command to test.
pub struct Bed {
    directory: tempfile::TempDir,
}

impl Bed {
    /// Builds an empty library: what is preloaded is not what these tests are about.
    pub fn new() -> Self {
        let bed = Self { directory: tempfile::tempdir().expect("temporary directory") };
        bed.compile("libshunpike.so", "", &["-shared", "-fPIC"]);
        bed
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The private broker's socket.
    pub fn socket(&self) -> PathBuf {
        self.path("shunpike/broker.sock")
    }

    /// Compiles a C program.
    pub fn compile(&self, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let file = self.path("source.c");
        fs::write(&file, source).expect("source");
        let path = self.path(name);
        let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
        let status = Command::new(compiler).args(options).arg("-o").arg(&path).arg(&file).status();
        assert!(status.expect("a C compiler").success());
        path
    }

    /// The command, in an environment that holds nothing of the caller's but PATH.
    pub fn shunpike(&self) -> Command {
        self.command(env!("CARGO_BIN_EXE_shunpike"))
    }

    /// Another command in the same environment.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", env::var_os("PATH").expect("PATH"))
            .env("XDG_RUNTIME_DIR", self.directory.path())
            .env("SHUNPIKE_LIB", self.path("libshunpike.so"));
        command
    }

    /// Runs the command with these arguments.
    pub fn output(&self, arguments: &[&str]) -> Output {
        self.shunpike().args(arguments).output().expect("shunpike")
    }

    /// The pid of the broker that answers at `socket`.
    pub fn broker(&self, socket: &Path) -> Option<u32> {
        let flags = SocketFlags::CLOEXEC;
        let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("socket");
        connect(&client, &SocketAddrUnix::new(socket).expect("short path")).ok()?;
        Some(socket_peercred(&client).expect("credentials").pid.as_raw_nonzero().get() as u32)
    }

    /// Processes whose arguments name `socket`.
    pub fn serving(&self, socket: &Path) -> Vec<u32> {
        let name = socket.to_str().expect("UTF-8");
        let is_serving = |pid: &u32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).any(|argument| argument == name.as_bytes())
        };
        let processes = fs::read_dir("/proc").expect("/proc");
        let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(is_serving).collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for pid in self.serving(&self.socket()) {
            let pid = rustix::process::Pid::from_raw(pid as i32).expect("a pid");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Waits until `what` is so; fails after [`PATIENCE`].
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(10));
    }
}

/// What a command wrote on its standard error.
pub fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// What a command wrote on its standard output.
pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}
