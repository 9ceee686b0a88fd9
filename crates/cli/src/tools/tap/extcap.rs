//! Wireshark's and tshark's own way to a tap: the program asks, in several calls, what there is, and then captures.

use super::filter::Wanted;
use super::{Kind, Options, Sink, capture, run};
use crate::args::Extcap;
use crate::error::Error;
use crate::filter::Filter;
use crate::tools::table;
use std::path::PathBuf;

/// The one interface.
const INTERFACE: &str = "shunpike";

/// Does one step of what Wireshark asks for (its developer's guide, "Extcap: Developer Reference").
pub fn answer(args: &Extcap, named: Option<PathBuf>) -> Result<(), Error> {
    if args.interfaces {
        let version = env!("CARGO_PKG_VERSION");
        return table::print(&format!(
            "extcap {{version={version}}}{{display=Shunpike}}\ninterface {{value={INTERFACE}}}{{display=Shunpike lanes}}"
        ));
    }
    let interface = args.interface.as_deref().unwrap_or_default();
    if interface != INTERFACE {
        return Err(Error::ExtcapInterface(interface.to_owned()));
    }
    if args.dlts {
        return table::print("dlt {number=101}{name=RAW}{display=Raw IP}");
    }
    if args.config {
        return table::print(
            "arg {number=0}{call=--socket}{display=Broker's socket}{type=string}{required=false}\
             {tooltip=The system-wide broker's, else your private one's, if empty}\n\
             arg {number=1}{call=--buffer}{display=Buffer for each process}{type=string}{default=4M}\
             {validation=[0-9]+[KM]?}{tooltip=256K to 32M; a larger one loses less}",
        );
    }
    let filter: Filter<Wanted> = args.filter.as_deref().unwrap_or_default().parse().map_err(Error::Filter)?;
    if !args.capture {
        // Only whether the filter can be used.
        return Ok(());
    }
    let fifo = args.fifo.as_ref().ok_or(Error::ExtcapFifo)?;
    let to = capture(fifo).map_err(|source| Error::Write { path: fifo.clone(), source })?;
    let named = named.filter(|path| !path.as_os_str().is_empty());
    run(
        &Options { filter, buffer: args.buffer, count: None },
        Kind::Capture,
        Sink { to, file: Some(fifo) },
        named,
    )
}
