//! What switches Shunpike on for containers, services, or all of a machine.

use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

const GENERATE_NOTES: &str = "\
A container with one of the two devices has the broker's directory, the library and this command. Neither its image nor its command is \
changed, and it needs no rights.
  shunpike.dev/lane=all       programs of glibc. The library is in /etc/ld.so.preload, so what the image preloads by LD_PRELOAD stays;
                              an /etc/ld.so.preload of the image does not
  shunpike.dev/lane=musl      programs of musl (Alpine), and of glibc. The library is in LD_PRELOAD, in the place of the image's own

Static programs, most of Go's among them, stay on TCP with either: a device mounts files and sets variables, and they read neither. Have the \
container execute this command, which is there, and it the program: 'shunpike run --entry=syscall -- PROGRAM'.

JSON is YAML, too: the file may have either name. Write it again when the library, this command or the broker's socket are elsewhere.

Examples:
  shunpike cdi generate --output /etc/cdi/shunpike.json
  podman run --device shunpike.dev/lane=all IMAGE redis-server
  podman run --device shunpike.dev/lane=all --entrypoint shunpike IMAGE run --entry=syscall -- /server";

pub(super) const CDI_NOTES: &str = "\
Examples:
  shunpike cdi generate --output /etc/cdi/shunpike.json";

/// What `cdi` can do.
#[derive(Subcommand)]
pub enum CdiAction {
    /// Print the specification of shunpike.dev/lane=all and lane=musl, or write it down for the engines
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
