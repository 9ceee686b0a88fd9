#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shunpike_fuzzed::broker::run(bytes));
