//! A peer that completes the handshake with its victim and then does what it likes (docs/threat-model.md).
//!
//! `hostile-peer SOCKET TARGET PID SEED ROUNDS [ATTACK]`: the broker's socket, the victim's address and process,
//! where the choices come from, how often; one kind of attack only. Ends with 0 when the victim stood it all:
//! it served bystanders after each round, and was quiet whenever nobody wanted anything of it (not asked with PID 0,
//! for a victim that has others to serve).
//!
//! The victim is any server that sends back what it gets.

mod attack;
mod dice;
mod peer;
mod session;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use attack::{ALL, Attack};
use dice::Dice;
use peer::{Peer, Stage};
use session::Session;

/// Messages by TCP after which a program in the default setting nominates its end.
const WARM: u32 = 10;
/// Attacked connections that stay as they are, for the victim to live with.
const LEFT: usize = 24;
/// How often the victim's idle CPU time is looked at, rounds.
const QUIET_EVERY: u64 = 16;

struct Args {
    socket: PathBuf,
    target: SocketAddr,
    pid: u32,
    seed: u64,
    rounds: u64,
    only: Option<Attack>,
}

fn args() -> Option<Args> {
    let mut args = std::env::args().skip(1);
    Some(Args {
        socket: args.next()?.into(),
        target: args.next()?.parse().ok()?,
        pid: args.next()?.parse().ok()?,
        seed: args.next()?.parse().ok()?,
        rounds: args.next()?.parse().ok()?,
        only: match args.next() {
            None => None,
            Some(name) => Some(ALL.into_iter().find(|attack| format!("{attack:?}") == name)?),
        },
    })
}

fn main() -> ExitCode {
    let Some(args) = args() else {
        eprintln!("usage: hostile-peer SOCKET ADDRESS:PORT PID SEED ROUNDS [ATTACK]\nattacks: {ALL:?}");
        return ExitCode::from(2);
    };
    let began = Instant::now();
    let mut tally = Tally::default();
    let mut left = Vec::new();
    let mut session = None;
    for round in 0..args.rounds {
        // Each round by itself can be played again.
        let seed = args.seed.wrapping_mul(1_000_003).wrapping_add(round);
        let mut dice = Dice::new(seed);
        let mut done = Vec::new();
        let result = play(&args, &mut session, &mut left, &mut dice, &mut tally, &mut done)
            .and_then(|()| peer::probe(args.target))
            .and_then(|()| if args.pid != 0 && round % QUIET_EVERY == 0 { quiet(args.pid) } else { Ok(()) });
        if let Err(problem) = result {
            println!("round {round} of seed {}: {done:?}: {problem}", args.seed);
            return ExitCode::FAILURE;
        }
    }
    let Tally { open, interrupted, refused } = tally;
    println!(
        "{} rounds in {:.1} s: {open} open, {interrupted} left in the handshake, {refused} refused",
        args.rounds,
        began.elapsed().as_secs_f64()
    );
    if open * 2 < args.rounds {
        println!("too few came on a lane for this to have tested anything");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

#[derive(Default)]
struct Tally {
    open: u64,
    interrupted: u64,
    refused: u64,
}

fn play(
    args: &Args,
    slot: &mut Option<Session>,
    left: &mut Vec<Peer>,
    dice: &mut Dice,
    tally: &mut Tally,
    done: &mut Vec<Attack>,
) -> Result<(), String> {
    if slot.is_none() || dice.one_in(40) {
        left.clear();
        *slot = Some(Session::open(&args.socket)?);
    }
    let Some(session) = slot else { return Ok(()) };
    let mut peer = Peer::connect(session, args.target).map_err(|e| format!("connect: {e}"))?;
    for _ in 0..WARM {
        peer.exchange(session, b"warm").map_err(|e| format!("before any attack: {e}"))?;
    }
    let most = if dice.one_in(6) { dice.below(6) } else { u64::MAX };
    match peer.shake(session, most)? {
        Stage::Open => tally.open += 1,
        Stage::Interrupted => tally.interrupted += 1,
        Stage::Refused => tally.refused += 1,
        Stage::Lost => {
            *slot = None;
            return Ok(());
        }
    }
    if peer.sent.is_some() {
        for _ in 0..dice.below(4) {
            peer.echo(session, dice).map_err(|e| format!("honest still: {e}"))?;
        }
    }
    for _ in 0..1 + dice.below(6) {
        let attack = args.only.unwrap_or_else(|| dice.pick(&ALL));
        done.push(attack);
        attack.run(&mut peer, session, dice)?;
    }
    if dice.one_in(3) {
        left.push(peer);
    }
    if left.len() > LEFT {
        left.swap_remove(dice.below(LEFT as u64) as usize);
    }
    Ok(())
}

/// Whether the victim is idle while nobody wants anything of it. Errors: it burns CPU time.
fn quiet(pid: u32) -> Result<(), String> {
    const WINDOW: Duration = Duration::from_millis(50);
    let mut last = 0;
    // What was begun may take its time; what spins does not end.
    for _ in 0..40 {
        let before = cpu_ns(pid)?;
        std::thread::sleep(WINDOW);
        last = cpu_ns(pid)?.saturating_sub(before);
        if last < WINDOW.as_nanos() as u64 / 4 {
            return Ok(());
        }
    }
    Err(format!("the victim spins: {last} ns of CPU time in the last {WINDOW:?}, with nothing to do"))
}

/// CPU time of all threads of a process that run now.
fn cpu_ns(pid: u32) -> Result<u64, String> {
    let tasks =
        std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|e| format!("the victim is gone: {e}"))?;
    let of = |task: std::fs::DirEntry| -> Option<u64> {
        std::fs::read_to_string(task.path().join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    Ok(tasks.flatten().filter_map(of).sum())
}
