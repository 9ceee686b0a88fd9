//! Says of each file what it is, its system calls, and how long it took to find them.
use shunpike_inject::{image, sites};
use std::time::Instant;

fn main() {
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).expect("a file");
        let began = Instant::now();
        let found = image::read(&bytes).map(|image| (image.kind.clone(), sites::find(&image, &bytes)));
        let took = began.elapsed();
        match found {
            Err(reason) => println!("{path}: {reason}"),
            Ok((kind, Err(reason))) => println!("{path}: {kind:?} {reason} {took:?}"),
            Ok((kind, Ok(sites))) => {
                let kept = sites.iter().filter(|site| site.is_kept()).count();
                println!("{path}: {kind:?} {} sites, {kept} keep their instruction, {took:?}", sites.len());
            }
        }
    }
}
