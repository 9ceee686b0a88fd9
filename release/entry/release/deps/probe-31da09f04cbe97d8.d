/work/main/release/entry/release/deps/probe-31da09f04cbe97d8.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/probe-0.5.2/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/probe-0.5.2/src/platform/mod.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/probe-0.5.2/src/platform/systemtap.rs

/work/main/release/entry/release/deps/libprobe-31da09f04cbe97d8.rlib: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/probe-0.5.2/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/probe-0.5.2/src/platform/mod.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/probe-0.5.2/src/platform/systemtap.rs

/work/main/release/entry/release/deps/libprobe-31da09f04cbe97d8.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/probe-0.5.2/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/probe-0.5.2/src/platform/mod.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/probe-0.5.2/src/platform/systemtap.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/probe-0.5.2/src/lib.rs:
/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/probe-0.5.2/src/platform/mod.rs:
/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/probe-0.5.2/src/platform/systemtap.rs:
