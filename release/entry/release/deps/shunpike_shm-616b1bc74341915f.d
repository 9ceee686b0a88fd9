/work/main/release/entry/release/deps/shunpike_shm-616b1bc74341915f.d: /work/main/crates/shm/src/lib.rs /work/main/crates/shm/src/arena.rs /work/main/crates/shm/src/arena/half.rs /work/main/crates/shm/src/device.rs /work/main/crates/shm/src/grace.rs /work/main/crates/shm/src/lane.rs /work/main/crates/shm/src/lane/loans.rs /work/main/crates/shm/src/lane/short.rs /work/main/crates/shm/src/lane/words.rs /work/main/crates/shm/src/lifecycle.rs /work/main/crates/shm/src/lock.rs /work/main/crates/shm/src/lock/list.rs /work/main/crates/shm/src/lock/mutex.rs /work/main/crates/shm/src/notices.rs /work/main/crates/shm/src/once.rs /work/main/crates/shm/src/pages.rs /work/main/crates/shm/src/place.rs /work/main/crates/shm/src/primitive.rs /work/main/crates/shm/src/published.rs /work/main/crates/shm/src/region.rs /work/main/crates/shm/src/tap.rs

/work/main/release/entry/release/deps/libshunpike_shm-616b1bc74341915f.rlib: /work/main/crates/shm/src/lib.rs /work/main/crates/shm/src/arena.rs /work/main/crates/shm/src/arena/half.rs /work/main/crates/shm/src/device.rs /work/main/crates/shm/src/grace.rs /work/main/crates/shm/src/lane.rs /work/main/crates/shm/src/lane/loans.rs /work/main/crates/shm/src/lane/short.rs /work/main/crates/shm/src/lane/words.rs /work/main/crates/shm/src/lifecycle.rs /work/main/crates/shm/src/lock.rs /work/main/crates/shm/src/lock/list.rs /work/main/crates/shm/src/lock/mutex.rs /work/main/crates/shm/src/notices.rs /work/main/crates/shm/src/once.rs /work/main/crates/shm/src/pages.rs /work/main/crates/shm/src/place.rs /work/main/crates/shm/src/primitive.rs /work/main/crates/shm/src/published.rs /work/main/crates/shm/src/region.rs /work/main/crates/shm/src/tap.rs

/work/main/release/entry/release/deps/libshunpike_shm-616b1bc74341915f.rmeta: /work/main/crates/shm/src/lib.rs /work/main/crates/shm/src/arena.rs /work/main/crates/shm/src/arena/half.rs /work/main/crates/shm/src/device.rs /work/main/crates/shm/src/grace.rs /work/main/crates/shm/src/lane.rs /work/main/crates/shm/src/lane/loans.rs /work/main/crates/shm/src/lane/short.rs /work/main/crates/shm/src/lane/words.rs /work/main/crates/shm/src/lifecycle.rs /work/main/crates/shm/src/lock.rs /work/main/crates/shm/src/lock/list.rs /work/main/crates/shm/src/lock/mutex.rs /work/main/crates/shm/src/notices.rs /work/main/crates/shm/src/once.rs /work/main/crates/shm/src/pages.rs /work/main/crates/shm/src/place.rs /work/main/crates/shm/src/primitive.rs /work/main/crates/shm/src/published.rs /work/main/crates/shm/src/region.rs /work/main/crates/shm/src/tap.rs

/work/main/crates/shm/src/lib.rs:
/work/main/crates/shm/src/arena.rs:
/work/main/crates/shm/src/arena/half.rs:
/work/main/crates/shm/src/device.rs:
/work/main/crates/shm/src/grace.rs:
/work/main/crates/shm/src/lane.rs:
/work/main/crates/shm/src/lane/loans.rs:
/work/main/crates/shm/src/lane/short.rs:
/work/main/crates/shm/src/lane/words.rs:
/work/main/crates/shm/src/lifecycle.rs:
/work/main/crates/shm/src/lock.rs:
/work/main/crates/shm/src/lock/list.rs:
/work/main/crates/shm/src/lock/mutex.rs:
/work/main/crates/shm/src/notices.rs:
/work/main/crates/shm/src/once.rs:
/work/main/crates/shm/src/pages.rs:
/work/main/crates/shm/src/place.rs:
/work/main/crates/shm/src/primitive.rs:
/work/main/crates/shm/src/published.rs:
/work/main/crates/shm/src/region.rs:
/work/main/crates/shm/src/tap.rs:
