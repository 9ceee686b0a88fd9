//! Completions and man pages, from the definitions that --help shows.

use crate::args::Cli;
use crate::error::Error;
use clap::CommandFactory;
use std::io::{self, Write};
use std::path::Path;

/// Prints the completions of `shell`.
pub fn completions(shell: clap_complete::Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "shunpike", &mut script);
    io::stdout().write_all(&script).map_err(Error::Output)
}

/// Writes shunpike.1 and a page for each subcommand into `directory`.
pub fn man(directory: &Path) -> Result<(), Error> {
    // Without clap's own `help` subcommand, whose pages would repeat all others.
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, directory)
        .map_err(|source| Error::Write { path: directory.to_owned(), source })
}
