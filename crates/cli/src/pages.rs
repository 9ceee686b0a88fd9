//! Completions and man pages, from the definitions that --help shows.

use crate::args::{Cli, EXIT_STATUS};
use crate::error::Error;
use crate::{socket, standard};
use clap::CommandFactory;
use clap_mangen::Man;
use roff::{Inline, Roff, bold, roman};
use shunpike_broker::settings::Knob;
use std::io::{self, Write};
use std::path::Path;

/// Prints the completions of `shell`.
pub fn completions(shell: clap_complete::Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "shunpike", &mut script);
    let script = String::from_utf8_lossy(&script);
    standard::output()?.write_all(with_more(shell, &script).as_bytes()).map_err(Error::Output)
}

/// With what is not in the definitions: settings for `sysctl`, PIDs that `ss` shows for `explain` and `revoke`.
fn with_more(shell: clap_complete::Shell, script: &str) -> String {
    let names: Vec<&str> = Knob::ALL.into_iter().map(Knob::name).collect();
    let filled = |more: &str| more.replace("SETTINGS", &names.join(" ")).replace("PIDS", PIDS);
    match shell {
        clap_complete::Shell::Bash => format!("{script}{}", filled(BASH)),
        clap_complete::Shell::Fish => format!("{script}{}", filled(FISH)),
        clap_complete::Shell::Zsh => {
            let script = script
                .replace("one of its descriptors:_default'", "one of its descriptors:_shunpike_pids'")
                .replace(
                    "all names with their ranges:_default'",
                    "all names with their ranges:_shunpike_settings'",
                );
            // The script's last lines call what stands above.
            let (above, last) = script.split_at(script.rfind("\nif [").unwrap_or(script.len()));
            format!("{above}{}{last}", filled(ZSH))
        }
        _ => script.to_owned(),
    }
}

const PIDS: &str = r#"shunpike ss 2>/dev/null | awk '
    NR == 1 { for (i = 1; i <= NF; i++) if ($i == "PID") back = NF - i; next }
    back && NF > back && $(NF - back) ~ /^[0-9]+$/ { print $(NF - back) }' | sort -nu"#;

const BASH: &str = r#"
_shunpike_more() {
    _shunpike "$@"
    local current="${COMP_WORDS[COMP_CWORD]}" words=""
    [[ $current == -* ]] && return
    case "${COMP_WORDS[1]}" in
        sysctl) words="SETTINGS" ;;
        explain|revoke) words="$(PIDS)" ;;
        *) return ;;
    esac
    local more
    mapfile -t more < <(compgen -W "$words" -- "$current")
    COMPREPLY+=("${more[@]}")
}
complete -F _shunpike_more -o bashdefault -o default shunpike
"#;

const FISH: &str = r#"
function __fish_shunpike_pids
    PIDS
end
complete -c shunpike -n "__fish_shunpike_using_subcommand sysctl" -f -a "SETTINGS"
complete -c shunpike -n "__fish_shunpike_using_subcommand explain" -f -a "(__fish_shunpike_pids)"
complete -c shunpike -n "__fish_shunpike_using_subcommand revoke" -f -a "(__fish_shunpike_pids)"
"#;

const ZSH: &str = r#"
_shunpike_pids() {
    compadd -- ${(f)"$(PIDS)"}
}

_shunpike_settings() {
    compadd -- SETTINGS
}
"#;

/// Writes shunpike.1 and a page for each subcommand into `directory`.
pub fn man(directory: &Path) -> Result<(), Error> {
    // Without clap's own `help` subcommand, whose pages would repeat all others.
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    pages(&command, None, directory)
}

/// The pages of a command and of its subcommands.
fn pages(command: &clap::Command, above: Option<&str>, directory: &Path) -> Result<(), Error> {
    let shown = || command.get_subcommands().filter(|below| !below.is_hide_set());
    let name = page_name(command);
    shown().try_for_each(|below| pages(below, Some(&name), directory))?;
    let man = Man::new(command.clone());
    let path = directory.join(man.get_filename());
    let related = above.map(str::to_owned).into_iter().chain(shown().map(page_name));
    let mut page = Vec::new();
    render(command, &man, related.collect(), &mut page)
        .and_then(|()| std::fs::write(&path, &page))
        .map_err(|source| Error::Write { path, source })
}

fn page_name(command: &clap::Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// A page, in the order of man-pages(7).
fn render(command: &clap::Command, man: &Man, related: Vec<String>, page: &mut Vec<u8>) -> io::Result<()> {
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(page)?;
    }
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let Notes { text, exit_status, examples } = Notes::of(&notes);
    let mut roff = Roff::new();
    literal(&mut roff, "NOTES", text);
    literal(&mut roff, "EXIT STATUS", exit_status.unwrap_or(EXIT_STATUS));
    let named = page_name(command);
    list(&mut roff, "ENVIRONMENT", ENVIRONMENT, &named);
    list(&mut roff, "FILES", FILES, &named);
    literal(&mut roff, "EXAMPLES", examples.unwrap_or_default());
    see_also(&mut roff, related);
    roff.to_writer(page)
}

/// What stands below the options in --help: text, then paragraphs with names of their own.
struct Notes<'a> {
    text: &'a str,
    exit_status: Option<&'a str>,
    examples: Option<&'a str>,
}

impl<'a> Notes<'a> {
    fn of(notes: &'a str) -> Self {
        let paragraph = |name: &str| {
            let at = notes.find(name)?;
            let behind = notes.get(at + name.len()..)?;
            Some(behind.split("\n\n").next().unwrap_or(behind).trim_matches('\n'))
        };
        let end = ["Exit status:", "Examples:"].iter().filter_map(|name| notes.find(name)).min();
        Self {
            text: notes.get(..end.unwrap_or(notes.len())).unwrap_or_default().trim_end(),
            exit_status: paragraph("Exit status: "),
            examples: paragraph("Examples:\n"),
        }
    }
}

/// Where a variable or file matters: everywhere, or to these subcommands.
type Item = (&'static str, &'static [&'static str], &'static str);

const ENVIRONMENT: &[Item] = &[
    (socket::VARIABLE, &[], "The broker's socket, where --socket does not say it. 'run' sets it for CMD."),
    (
        "XDG_RUNTIME_DIR",
        &[],
        "Where the user's private broker has its socket. Left aside, for /tmp/shunpike-UID, where it is not the user's alone.",
    ),
    (
        "SHUNPIKE_LIB",
        &["run", "bench", "cdi", "cdi-generate", "enable"],
        "The library to preload, in place of the installed one.",
    ),
    (
        "SHUNPIKE_ENTRY",
        &["run", "cdi", "cdi-generate"],
        "The library that --entry=syscall loads into programs without a libc, in place of the installed one.",
    ),
    (
        "SHUNPIKE_INJECT",
        &["run"],
        "What reaches programs without a libc that CMD's children are. 'run --entry=syscall' sets it for CMD, any other 'run' takes it away.",
    ),
    ("LD_PRELOAD", &["run"], "What else is preloaded: it stays, behind the library."),
    (
        "SHUNPIKE_NAME",
        &["broker", "sysctl"],
        "A setting of the broker by its name, as SHUNPIKE_SPIN_US=0, where neither the command line nor a later sysctl says otherwise.",
    ),
];

const FILES: &[Item] = &[
    (socket::SYSTEM, &[], "The system-wide broker's socket."),
    ("$XDG_RUNTIME_DIR/shunpike/broker.sock", &[], "The private broker's, of one user."),
    (
        "/etc/shunpike/broker.toml",
        &["broker", "policy", "sysctl", "info"],
        "Policy and settings of the system-wide broker.",
    ),
    ("~/.config/shunpike/broker.toml", &["broker", "policy", "sysctl", "info"], "Those of a private broker."),
    (
        "/etc/systemd/system/UNIT.d/90-shunpike.conf",
        &["enable", "disable"],
        "The drop-in of a service that is enabled.",
    ),
    (
        "/etc/ld.so.preload",
        &["enable", "disable"],
        "The loader's list of libraries that are in every program; 'enable --all' adds a line.",
    ),
    ("/etc/shunpike/enabled", &["enable", "disable"], "The list of what is on for 'enable --all'."),
    (
        "/etc/cdi/shunpike.json",
        &["cdi", "cdi-generate"],
        "The specification, where container engines look for it. Or shunpike.yaml, or in /run/cdi.",
    ),
    (
        "PREFIX/lib/shunpike/libshunpike-entry.so",
        &["run", "cdi", "cdi-generate"],
        "What --entry=syscall loads into programs without a libc.",
    ),
    (
        "PREFIX/lib/shunpike/container.preload",
        &["cdi", "cdi-generate"],
        "What is /etc/ld.so.preload in a container; beside the library.",
    ),
];

fn list(roff: &mut Roff, heading: &str, items: &[Item], page: &str) {
    let is_here = |of: &[&str]| of.is_empty() || of.iter().any(|name| page == format!("shunpike-{name}"));
    roff.control("SH", [heading]);
    for (name, _, what) in items.iter().filter(|(_, of, _)| is_here(of)) {
        roff.control("TP", []);
        roff.text([bold(*name)]);
        roff.text([roman(*what)]);
    }
}

/// Lines as they stand.
fn literal(roff: &mut Roff, heading: &str, text: &str) {
    if text.is_empty() {
        return;
    }
    roff.control("SH", [heading]);
    for paragraph in text.split("\n\n") {
        let is_table = paragraph.lines().any(|line| line.starts_with("  "));
        roff.control("PP", []);
        if is_table {
            roff.control("nf", []);
        }
        for line in paragraph.lines() {
            roff.text([roman(line)]);
        }
        if is_table {
            roff.control("fi", []);
        }
    }
}

fn see_also(roff: &mut Roff, related: Vec<String>) {
    let related = related.into_iter().map(|name| (name, "1"));
    let others = [("ss", "8"), ("smcss", "8"), ("smcd", "8"), ("smc_run", "8"), ("ld.so", "8")];
    let others = others.map(|(name, section)| (name.to_owned(), section));
    let mut line: Vec<Inline> = Vec::new();
    for (name, section) in related.chain(others) {
        let comma = if line.is_empty() { "" } else { ", " };
        line.extend([roman(comma), bold(name), roman(format!("({section})"))]);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text(line);
}
