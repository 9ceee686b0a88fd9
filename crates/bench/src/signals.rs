//! Signals that end a measurement.

use crate::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Set by SIGINT and SIGTERM: what was measured until then is shown.
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Whether we were told to end.
pub fn is_interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// From here on SIGINT and SIGTERM end the rounds.
pub fn end_at_signals() -> Result<(), Error> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, flag.clone())
            .map_err(|error| Error::Setup("catch signals", error))?;
    }
    Ok(())
}
