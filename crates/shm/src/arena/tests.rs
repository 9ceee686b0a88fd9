use super::*;

#[test]
fn buckets_are_those_of_smc_tools() {
    let of = |n| bucket(n);
    assert_eq!([of(1), of(8192), of(8193), of(16384)], [0, 0, 1, 1]);
    assert_eq!([of(512 << 10), of((512 << 10) + 1), of(usize::MAX)], [6, 7, 7]);
}

#[test]
fn buckets_of_wake_ups_double() {
    let of = |us| wake_bucket(us);
    assert_eq!([of(0), of(1), of(2), of(3), of(4)], [0, 1, 2, 2, 3]);
    assert_eq!([of(16383), of(16384), of(u64::MAX)], [14, 15, 15]);
}

#[test]
fn a_released_block_is_found_again_with_another_identity() {
    let arena = Arena::create(1).expect("memfd");
    let first = arena.allocate().expect("free block");
    let identity = || (first.uses.load(Ordering::Relaxed), first.name.load(Ordering::Relaxed));
    let (uses, name) = identity();
    first.free();
    let all: Vec<_> = (0..BLOCKS).filter_map(|_| arena.allocate()).collect();
    assert_eq!(all.len(), BLOCKS);
    assert!(arena.allocate().is_none(), "every block is taken");
    assert_eq!(identity(), (uses + 1, name + 1));
}

#[test]
fn a_prepared_block_is_nobodys_and_not_free() {
    let arena = Arena::create(1).expect("memfd");
    let block = arena.prepare().expect("free block");
    assert!(!block.is_held());
    let all = (0..BLOCKS).filter_map(|_| arena.allocate());
    assert!(all.into_iter().all(|other| !core::ptr::eq(other, block)));
    block.take();
    assert!(block.is_held() && block.leave(1));
}

#[test]
fn the_last_holder_is_told_so_and_only_that_one() {
    let arena = Arena::create(1).expect("memfd");
    let block = arena.allocate().expect("free block");
    block.holders.fetch_or(0b110, Ordering::Relaxed);
    assert!(!block.leave(0b010) && !block.leave(0b001));
    assert!(block.leave(0b100) && block.leave(0b100), "its own until it is freed");
    block.free();
    assert_eq!(block.holders.load(Ordering::Relaxed), 0);
}

#[test]
fn addresses_come_back_as_noted() {
    let arena = Arena::create(1).expect("memfd");
    let block = arena.allocate().expect("free block");
    for (local, remote) in [("10.0.0.1:80", "192.168.7.9:65535"), ("[fe80::1:2]:1", "[::1]:2")] {
        let pair = (local.parse().expect("address"), remote.parse().expect("address"));
        block.set_addresses(pair.0, pair.1);
        assert_eq!(block.addresses(), pair);
    }
}

#[test]
fn a_look_at_holes_allocates_nothing() {
    let arena = Arena::create(1).expect("memfd");
    arena.header().high.store(BLOCKS as u32, Ordering::Relaxed);
    let blocks = |arena: &Arena| rustix::fs::fstat(arena.fd()).expect("stat").st_blocks;
    let view = ArenaView::of(arena.fd().try_clone().expect("dup")).expect("sealed");
    let before = blocks(&arena);
    assert_eq!(view.held(0, &mut BLOCKS.clone()).count(), 0, "never touched");
    assert!(!view.block(BLOCKS as u32 - 1).expect("in range").is_held());
    assert!(view.block(BLOCKS as u32).is_none());
    assert_eq!(blocks(&arena), before);
    // The end is allocated, so that there seems to be as much memory as blocks, and the beginning is a hole.
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(arena.fd(), flags, (SIZE / 2) as u64, (SIZE / 2) as u64).expect("allocates");
    let before = blocks(&arena);
    assert_eq!(view.held(0, &mut BLOCKS.clone()).count(), 0);
    assert_eq!(blocks(&arena), before, "looked at {} MiB", SIZE >> 21);
}

#[test]
fn a_view_sees_what_is_in_use_from_where_it_is_told() {
    let arena = Arena::create(7).expect("memfd");
    let view = ArenaView::of(arena.fd().try_clone().expect("dup")).expect("sealed");
    let mut numbers: Vec<u32> =
        (0..100).map(|_| arena.index(arena.allocate().expect("free")).expect("ours")).collect();
    arena.block(numbers[40]).free();
    numbers.remove(40);
    numbers.sort_unstable();
    assert_eq!(view.header().pid.load(Ordering::Relaxed), 7);
    assert_eq!(view.held(0, &mut BLOCKS.clone()).map(|(index, _)| index).collect::<Vec<_>>(), numbers);
    assert_eq!(view.held(numbers[70], &mut BLOCKS.clone()).count(), 29);
    let mut looks = 64;
    assert!(view.held(0, &mut looks).count() <= 64);
    assert_eq!(looks, 0);
}

#[test]
fn a_view_refuses_memory_that_could_shrink() {
    let fd = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&fd, SIZE as u64).expect("size");
    assert!(ArenaView::of(fd).is_err());
}
