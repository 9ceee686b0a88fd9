//! `top`: processes and connections, live.

mod draw;
mod model;

use super::Broker;
use crate::args::{Sort, Top};
use crate::error::Error;
use crate::signals;
use model::{Sample, View};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::time::Timespec;
use shunpike_broker::what;
use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Which table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Tab {
    /// A line for each process.
    Processes,
    /// A line for each connection end.
    Connections,
}

/// What keys are for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Each has its own meaning.
    Orders,
    /// They are the filter's text.
    Filter,
    /// The next one takes the help away.
    Help,
}

/// What the keys have changed.
pub struct State {
    tab: Tab,
    sort: Sort,
    reverse: bool,
    paused: bool,
    scroll: usize,
    /// Only rows that have this in them are shown.
    filter: String,
    /// What keys are for.
    keys: Keys,
    /// Why there is nothing new, for the status line.
    trouble: String,
}

/// Shows it until somebody has seen enough, or as often as asked.
pub(super) fn run(broker: &Broker, args: &Top) -> Result<(), Error> {
    let state = State {
        tab: if args.connections { Tab::Connections } else { Tab::Processes },
        sort: args.sort,
        reverse: args.reverse,
        paused: false,
        scroll: 0,
        filter: args.filter.clone().unwrap_or_default(),
        keys: Keys::Orders,
        trouble: String::new(),
    };
    let interval = Duration::from_secs_f64(args.interval);
    match if args.once { Some(1) } else { args.batch } {
        Some(times) => batch(broker, &state, interval, times),
        None if !io::stdout().is_terminal() || !io::stdin().is_terminal() => Err(Error::NoTerminal),
        None => live(broker, state, interval),
    }
}

fn sample(broker: &Broker) -> Result<Sample, Error> {
    Ok(Sample {
        at: Instant::now(),
        info: broker.answer(what::INFO, "")?,
        stats: broker.answer(what::STATS, "")?,
        earlier: None,
        processes: broker.answer(what::PROCESSES, "")?,
        connections: broker.connections()?,
    })
}

fn batch(broker: &Broker, state: &State, interval: Duration, times: u32) -> Result<(), Error> {
    let mut before = sample(broker)?;
    for number in 0..times {
        sleep(interval);
        let now = sample(broker)?.after(&before);
        if number > 0 {
            super::table::print("")?;
        }
        draw::text(&View::between(&before, &now, state.sort, state.reverse), state)?;
        before = now;
    }
    Ok(())
}

fn live(broker: &Broker, mut state: State, interval: Duration) -> Result<(), Error> {
    let mut before = sample(broker)?;
    let mut now = sample(broker)?.after(&before);
    // Before the terminal is changed: whatever ends us is to find it restored.
    let stop = signals::stop_signals().map_err(Error::Signals)?;
    // Restores the terminal when it is dropped, and before a panic is told.
    let mut terminal = Restored(ratatui::try_init().map_err(Error::Output)?);
    let mut due = Instant::now() + interval;
    loop {
        let view = View::between(&before, &now, state.sort, state.reverse);
        state.scroll = state.scroll.min(view.processes.len().max(view.connections.len()));
        terminal.0.draw(|frame| draw::screen(frame, &state, &view)).map_err(Error::Output)?;
        if !has_terminal(&stop, due.saturating_duration_since(Instant::now())) {
            return Ok(());
        }
        let mut is_news = false;
        while event::poll(Duration::ZERO).map_err(Error::Output)? {
            is_news = true;
            if let Event::Key(key) = event::read().map_err(Error::Output)?
                && key.kind != KeyEventKind::Release
                && !state.press(key)
            {
                return Ok(());
            }
        }
        if is_news || Instant::now() < due {
            continue;
        }
        due = Instant::now() + interval;
        if !state.paused {
            match sample(broker) {
                Ok(next) => {
                    let next = next.after(&now);
                    before = std::mem::replace(&mut now, next);
                    state.trouble.clear();
                }
                // It may come back: programs go on meanwhile, and so do we.
                Err(error) => state.trouble = error.to_string(),
            }
        }
    }
}

/// Waits for a key, another size of the window (which comes as a signal) or the time; false: a signal has told us to end, or the terminal
/// is gone, of which SIGHUP need not tell.
fn has_terminal(stop: &OwnedFd, left: Duration) -> bool {
    let input = io::stdin();
    let mut fds = [PollFd::new(stop, PollFlags::IN), PollFd::new(&input, PollFlags::IN)];
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    if poll(&mut fds, Some(&left)).is_err() {
        return true;
    }
    fds[0].revents().is_empty() && !fds[1].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

struct Restored(ratatui::DefaultTerminal);

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

impl State {
    /// Does what a key asks for; false: leave.
    fn press(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return false;
        }
        match self.keys {
            Keys::Orders => {}
            Keys::Filter => {
                self.type_filter(key.code);
                return true;
            }
            Keys::Help => {
                self.keys = Keys::Orders;
                return true;
            }
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') | KeyCode::Tab => {
                self.tab = if self.tab == Tab::Processes { Tab::Connections } else { Tab::Processes };
                self.scroll = 0;
            }
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('p') | KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll = self.scroll.saturating_add(1),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(10),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(10),
            KeyCode::Home => self.scroll = 0,
            KeyCode::Char('/') => self.keys = Keys::Filter,
            KeyCode::Char('h' | '?') => self.keys = Keys::Help,
            _ => {}
        }
        true
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.keys = Keys::Orders,
            KeyCode::Esc => {
                self.filter.clear();
                self.keys = Keys::Orders;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.scroll = 0;
    }
}
