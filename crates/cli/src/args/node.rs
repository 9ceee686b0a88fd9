//! What switches Shunpike on for containers, services, or all of a machine.

use clap::{Subcommand, ValueHint};
use std::path::PathBuf;

const GENERATE_NOTES: &str = "\
A container with this device has the broker's directory, the library and this command, and its programs are under Shunpike. Neither its \
image nor its command is changed, and it needs no rights. Static programs, and those of another C library than glibc, stay on TCP.

The library is preloaded by a file at /etc/ld.so.preload in the container, not by LD_PRELOAD: an engine would put a variable of the \
specification in the place of the image's own. So what the image, or --env, preloads stays. An image's own /etc/ld.so.preload does not.

JSON is YAML, too: the file may have either name. Write it again when the library, this command or the broker's socket are elsewhere.

Examples:
  shunpike cdi generate --output /etc/cdi/shunpike.json
  podman run --device shunpike.dev/lane=all IMAGE redis-server";

/// What `cdi` can do.
#[derive(Subcommand)]
pub enum CdiAction {
    /// Print the specification of the device shunpike.dev/lane=all, or write it down for the engines
    #[command(after_help = GENERATE_NOTES)]
    Generate {
        /// The file, in place of standard output: engines look at /etc/cdi/shunpike.json or /etc/cdi/shunpike.yaml
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
}
