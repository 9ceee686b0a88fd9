/work/main/release/entry/release/deps/shunpike_entry.d: src/lib.rs src/real.rs src/../../preload/src/answers.rs src/calls.rs src/cancel.rs src/../../preload/src/children.rs src/compilers.rs src/../../preload/src/control.rs src/../../preload/src/data.rs src/errno.rs src/gate.rs src/host.rs src/../../preload/src/indirect.rs src/../../preload/src/kept.rs src/../../preload/src/lifecycle.rs src/../../preload/src/memory.rs src/../../preload/src/readiness.rs src/signals.rs src/start.rs src/state.rs src/streams.rs src/../../preload/src/syscall.rs src/this_libc.rs src/../../preload/src/vforked.rs src/zones.rs

/work/main/release/entry/release/deps/libshunpike_entry.so: src/lib.rs src/real.rs src/../../preload/src/answers.rs src/calls.rs src/cancel.rs src/../../preload/src/children.rs src/compilers.rs src/../../preload/src/control.rs src/../../preload/src/data.rs src/errno.rs src/gate.rs src/host.rs src/../../preload/src/indirect.rs src/../../preload/src/kept.rs src/../../preload/src/lifecycle.rs src/../../preload/src/memory.rs src/../../preload/src/readiness.rs src/signals.rs src/start.rs src/state.rs src/streams.rs src/../../preload/src/syscall.rs src/this_libc.rs src/../../preload/src/vforked.rs src/zones.rs

src/lib.rs:
src/real.rs:
src/../../preload/src/answers.rs:
src/calls.rs:
src/cancel.rs:
src/../../preload/src/children.rs:
src/compilers.rs:
src/../../preload/src/control.rs:
src/../../preload/src/data.rs:
src/errno.rs:
src/gate.rs:
src/host.rs:
src/../../preload/src/indirect.rs:
src/../../preload/src/kept.rs:
src/../../preload/src/lifecycle.rs:
src/../../preload/src/memory.rs:
src/../../preload/src/readiness.rs:
src/signals.rs:
src/start.rs:
src/state.rs:
src/streams.rs:
src/../../preload/src/syscall.rs:
src/this_libc.rs:
src/../../preload/src/vforked.rs:
src/zones.rs:
