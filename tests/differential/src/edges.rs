//! Which edges of the library's code this process has been through, where it was built to count them (ci/differential): LLVM's
//! SanitizerCoverage has a byte for each in a section of its own.

use std::sync::atomic::{AtomicU8, Ordering};

use object::{Object, ObjectSection, ObjectSegment};

const SECTION: &str = "__sancov_cntrs";

/// The counters, and which of them were told of.
pub struct Edges {
    counters: &'static [AtomicU8],
    told: Vec<bool>,
}

impl Edges {
    /// Those of the library that is loaded here; none where it has none.
    pub fn new() -> Self {
        let counters = find().unwrap_or(&[]);
        Self { counters, told: vec![false; counters.len()] }
    }

    pub fn all(&self) -> u32 {
        self.counters.len() as u32
    }

    /// Those that were passed since the last call, for the first time.
    pub fn new_ones(&mut self) -> Vec<u32> {
        let mut new = Vec::new();
        for (number, (counter, told)) in self.counters.iter().zip(&mut self.told).enumerate() {
            if counter.load(Ordering::Relaxed) != 0 && !std::mem::replace(told, true) {
                new.push(number as u32);
            }
        }
        new
    }
}

fn find() -> Option<&'static [AtomicU8]> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    // The first mapping of the file is that of its beginning.
    let line = maps.lines().find(|line| line.contains("libshunpike"))?;
    let begin = u64::from_str_radix(line.split('-').next()?, 16).ok()?;
    let bytes = std::fs::read(&line[line.find('/')?..]).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let section = file.section_by_name(SECTION)?;
    let first = file.segments().map(|segment| segment.address()).min()?;
    let at = (begin - first + section.address()) as *const AtomicU8;
    // SAFETY: the loader has mapped the section there, for as long as the process lives; whoever counts writes single bytes.
    Some(unsafe { std::slice::from_raw_parts(at, section.size() as usize) })
}
