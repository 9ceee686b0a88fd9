/work/main/release/entry/release/deps/shunpike_wire-9fa82025903bf215.d: /work/main/crates/wire/src/lib.rs /work/main/crates/wire/src/cdc.rs /work/main/crates/wire/src/clc/mod.rs /work/main/crates/wire/src/clc/accept.rs /work/main/crates/wire/src/clc/bytes.rs /work/main/crates/wire/src/clc/decline.rs /work/main/crates/wire/src/clc/handshake/mod.rs /work/main/crates/wire/src/clc/handshake/client.rs /work/main/crates/wire/src/clc/handshake/server.rs /work/main/crates/wire/src/clc/list.rs /work/main/crates/wire/src/clc/proposal.rs /work/main/crates/wire/src/enabled.rs /work/main/crates/wire/src/ids.rs /work/main/crates/wire/src/reason.rs /work/main/crates/wire/src/session.rs /work/main/crates/wire/src/session/codec.rs

/work/main/release/entry/release/deps/libshunpike_wire-9fa82025903bf215.rlib: /work/main/crates/wire/src/lib.rs /work/main/crates/wire/src/cdc.rs /work/main/crates/wire/src/clc/mod.rs /work/main/crates/wire/src/clc/accept.rs /work/main/crates/wire/src/clc/bytes.rs /work/main/crates/wire/src/clc/decline.rs /work/main/crates/wire/src/clc/handshake/mod.rs /work/main/crates/wire/src/clc/handshake/client.rs /work/main/crates/wire/src/clc/handshake/server.rs /work/main/crates/wire/src/clc/list.rs /work/main/crates/wire/src/clc/proposal.rs /work/main/crates/wire/src/enabled.rs /work/main/crates/wire/src/ids.rs /work/main/crates/wire/src/reason.rs /work/main/crates/wire/src/session.rs /work/main/crates/wire/src/session/codec.rs

/work/main/release/entry/release/deps/libshunpike_wire-9fa82025903bf215.rmeta: /work/main/crates/wire/src/lib.rs /work/main/crates/wire/src/cdc.rs /work/main/crates/wire/src/clc/mod.rs /work/main/crates/wire/src/clc/accept.rs /work/main/crates/wire/src/clc/bytes.rs /work/main/crates/wire/src/clc/decline.rs /work/main/crates/wire/src/clc/handshake/mod.rs /work/main/crates/wire/src/clc/handshake/client.rs /work/main/crates/wire/src/clc/handshake/server.rs /work/main/crates/wire/src/clc/list.rs /work/main/crates/wire/src/clc/proposal.rs /work/main/crates/wire/src/enabled.rs /work/main/crates/wire/src/ids.rs /work/main/crates/wire/src/reason.rs /work/main/crates/wire/src/session.rs /work/main/crates/wire/src/session/codec.rs

/work/main/crates/wire/src/lib.rs:
/work/main/crates/wire/src/cdc.rs:
/work/main/crates/wire/src/clc/mod.rs:
/work/main/crates/wire/src/clc/accept.rs:
/work/main/crates/wire/src/clc/bytes.rs:
/work/main/crates/wire/src/clc/decline.rs:
/work/main/crates/wire/src/clc/handshake/mod.rs:
/work/main/crates/wire/src/clc/handshake/client.rs:
/work/main/crates/wire/src/clc/handshake/server.rs:
/work/main/crates/wire/src/clc/list.rs:
/work/main/crates/wire/src/clc/proposal.rs:
/work/main/crates/wire/src/enabled.rs:
/work/main/crates/wire/src/ids.rs:
/work/main/crates/wire/src/reason.rs:
/work/main/crates/wire/src/session.rs:
/work/main/crates/wire/src/session/codec.rs:
