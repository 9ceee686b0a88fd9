//! Completions and man pages, from the definitions that --help shows.

use crate::args::Cli;
use crate::error::Error;
use clap::CommandFactory;
use std::fs;
use std::io;
use std::path::Path;

/// Prints the completions of `shell`.
pub fn completions(shell: clap_complete::Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "shunpike", &mut script);
    io::Write::write_all(&mut io::stdout(), &script).map_err(Error::Output)
}

/// Writes shunpike.1 and a page for each subcommand into `directory`.
pub fn man(directory: &Path) -> Result<(), Error> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_page(&command, "shunpike", directory)?;
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_page(subcommand, &format!("shunpike-{}", subcommand.get_name()), directory)?;
    }
    Ok(())
}

fn write_page(command: &clap::Command, name: &str, directory: &Path) -> Result<(), Error> {
    let path = directory.join(format!("{name}.1"));
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .title(name.to_uppercase())
        .render(&mut page)
        .and_then(|()| fs::write(&path, page))
        .map_err(|source| Error::Write { path, source })
}
