//! What switches Shunpike on for containers, services, or all of a machine.

use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

const GENERATE_NOTES: &str = "\
A container with this device has the broker's directory, the library and this command, and its programs are under Shunpike. Neither its \
image nor its command is changed, and it needs no rights. Static programs stay on TCP, and so do those of another C library than glibc, whose loaders do not read the file below.

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

pub(super) const ENABLE_NOTES: &str = "\
UNIT is a service of systemd, with or without '.service'. It gets a drop-in that preloads the library, before what the unit preloads \
itself, and names the system-wide broker, which starts with it. The unit is under Shunpike from its next start on.

--all puts the library into /etc/ld.so.preload, beside what others have there: it is in every program that starts from then on. The list \
/etc/shunpike/enabled says which of them are on; without it, or with one that cannot be understood, none is. It has a line for each thing:
  on program redis-server    a program by its name, its whole path, or * for any
  off user 33                who starts it, by number
  off port 5432              a port at either end of a connection; or 8000-8099
What a line has off is off. Where lines have something of a kind on, nothing else of that kind is. A list that is not there is made, with \
every program on. What is changed in it holds for programs that start later; 'enable --all' checks it.

Programs under 'shunpike run' are on, whatever the list says; with an empty SHUNPIKE_SOCKET a program is off. setuid programs and the \
first process of the machine are never on.

Examples:
  shunpike enable redis-server nginx
  shunpike enable --all
  shunpike disable --all";

pub(super) const DISABLE_NOTES: &str = "\
Takes away what 'enable' has put there, and nothing else. The list /etc/shunpike/enabled stays. With --everything it takes away the \
drop-ins of all services and the line of --all, as has to be done before the library is removed (packages and 'make uninstall' do it): \
the loader complains in each program that is to load one that is not there. Programs that run go on as they are; \
'shunpike device set active off' moves their connections back to TCP.

Examples:
  shunpike disable redis-server
  shunpike disable --all";

/// `enable`.
#[derive(Args)]
pub struct Enable {
    /// Services
    #[arg(value_name = "UNIT", required_unless_present = "all")]
    pub units: Vec<String>,
    /// All programs of this machine, but for those that the list has off
    #[arg(long, conflicts_with = "units")]
    pub all: bool,
    /// The system below this directory, as for systemctl
    #[arg(long, value_name = "DIR", default_value = "/", value_hint = ValueHint::DirPath)]
    pub root: PathBuf,
}

/// `disable`.
#[derive(Args)]
pub struct Disable {
    /// Services
    #[arg(value_name = "UNIT", required_unless_present_any = ["all", "everything"])]
    pub units: Vec<String>,
    /// All programs of this machine
    #[arg(long, conflicts_with = "units")]
    pub all: bool,
    /// All programs of this machine, and each service that is enabled
    #[arg(long, conflicts_with_all = ["units", "all"])]
    pub everything: bool,
    /// The system below this directory, as for systemctl
    #[arg(long, value_name = "DIR", default_value = "/", value_hint = ValueHint::DirPath)]
    pub root: PathBuf,
}
