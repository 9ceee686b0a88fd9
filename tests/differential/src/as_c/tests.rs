//! Each kept program is one of C that compiles, and that comes to its end.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::as_c;
use crate::search::read_kept;

/// Of each kind one that says much: echoes, floods, edges, options, children, a second number, waits.
const RUN: [&str; 6] = [
    "fionread-tcp-then-ring",
    "room-by-select",
    "recvmmsg-tells-of-an-error",
    "child-reads-and-closes",
    "peek-offset",
    "unread-told-at-the-end",
];

fn kept() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = ["kept", "known"]
        .iter()
        .flat_map(|name| {
            std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("kept programs")
        })
        .map(|entry| entry.expect("a kept program").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    all.sort();
    all
}

/// The program of a file as C, compiled into a directory.
fn compiled(directory: &Path, json: &Path) -> PathBuf {
    let (program, fault) = read_kept(json);
    let name = json.file_stem().expect("a name");
    let source = directory.join(name).with_extension("c");
    std::fs::write(&source, as_c(&program, &fault)).expect("a source");
    let binary = directory.join(name);
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let Output { status, stderr, .. } = Command::new(compiler)
        .args(["-O0", "-w", "-pthread", "-o"])
        .args([&binary, &source])
        .output()
        .expect("a C compiler");
    assert!(status.success(), "{}: {}", json.display(), String::from_utf8_lossy(&stderr));
    binary
}

#[test]
fn each_kept_program_compiles_and_some_come_to_their_end_on_tcp() {
    let directory = tempfile::tempdir().expect("a directory");
    let all = kept();
    assert!(all.len() > 40, "{} kept programs", all.len());
    let mut ran = 0;
    for json in &all {
        let binary = compiled(directory.path(), json);
        if !RUN.iter().any(|name| json.file_stem().is_some_and(|stem| stem == *name)) {
            continue;
        }
        ran += 1;
        let Output { status, stdout, .. } = Command::new(&binary).output().expect("it starts");
        let said = String::from_utf8_lossy(&stdout);
        assert!(status.success(), "{}: {status}, {said}", json.display());
        assert!(
            said.lines().any(|line| line.starts_with("client ") || line.starts_with("server ")),
            "{said}"
        );
    }
    assert_eq!(ran, RUN.len(), "each of those to be run is there");
}
