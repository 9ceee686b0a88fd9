//! Executes a program, patched. For the tests: what came of it goes to a file, calls are counted in another.
//!
//! Usage: inject REPORT COUNTS CACHE PROGRAM [ARGUMENT...]     "-" for none

use shunpike_inject::{cache::Cache, trace};
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

fn main() {
    let mut arguments =
        std::env::args_os().skip(1).map(|argument| CString::new(argument.into_vec()).expect("no zeros"));
    let mut optional = || arguments.next().expect("more arguments");
    let (report, counts, cache) = (optional(), optional(), optional());
    let arguments: Vec<CString> = arguments.collect();
    let environment = std::env::vars_os().map(|(name, value)| [name, value].join("=".as_ref()));
    let environment: Vec<CString> =
        environment.map(|one| CString::new(one.into_vec()).expect("no zeros")).collect();
    let given = |name: CString| name.to_str().ok().filter(|name| *name != "-").map(str::to_owned);
    let (report, counts, cache) = (given(report), given(counts), given(cache));
    let cache = cache.map(|directory| Cache::open(Path::new(&directory)).expect("a directory"));
    let counts = counts.map(|path| CString::new(path).expect("no zeros"));
    let execution = trace::Execution {
        path: arguments.first().expect("a program"),
        arguments: &arguments,
        environment: &environment,
        cache: cache.as_ref(),
        counts: counts.as_deref(),
    };
    let error = trace::exec(&execution, &|done| {
        if let Some(report) = &report {
            let text = done.map_or_else(|reason| reason.to_string(), |()| "0".to_owned());
            std::fs::write(report, text).expect("a file");
        }
    });
    eprintln!("inject: {error}");
    std::process::exit(127);
}
