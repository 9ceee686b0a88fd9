//! Every input that was kept, seeds and finds, goes through its target without harm.

use shunpike_fuzzed::{TARGETS, Target};
use std::path::Path;

fn replay(name: &str, run: Target) -> usize {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let mut played = 0;
    for kind in ["seeds", "corpus"] {
        let Ok(files) = std::fs::read_dir(fuzz.join(kind).join(name)) else { continue };
        for file in files {
            let path = file.expect("an entry").path();
            let bytes = std::fs::read(&path).expect("a readable file");
            // Where the target panics, this is the input.
            eprintln!("{}", path.display());
            run(&bytes);
            played += 1;
        }
    }
    played
}

#[test]
fn what_was_kept_is_played_again() {
    for (name, run) in TARGETS {
        let played = replay(name, run);
        assert!(played >= 8, "{name}: {played} inputs: where are the others?");
    }
}

/// Whatever the bytes: a few of no plan at all, so that a target that takes none is noticed.
#[test]
fn any_bytes_will_do() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for (_, run) in TARGETS {
        for len in (0..400).step_by(7) {
            let bytes: Vec<u8> = (0..len)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as u8
                })
                .collect();
            run(&bytes);
        }
    }
}
