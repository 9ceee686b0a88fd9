use super::*;

#[test]
fn a_cursor_keeps_its_fields_apart() {
    let c = Cursor::new(MAX_GENERATION, MAX_OFFSET - 1).with(Cursor::END);
    assert_eq!((c.generation(), c.offset(), c.has(Cursor::END)), (MAX_GENERATION, MAX_OFFSET - 1, true));
    assert_eq!(Cursor::new(3, 7).plus(5), Cursor::new(3, 12));
    let lawful = (0..16).filter(|&flags| Cursor::new(1, 9).with(flags).is_lawful());
    assert_eq!(lawful.collect::<Vec<_>>(), [0, 1, 2, 3, 6, 7]);
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn the_words_lie_in_the_header_wherever_they_begin() {
    let places: Vec<_> = (0..64).map(Dmb::words_at).collect();
    assert!(places.iter().all(|at| at % align_of::<Words>() == 0 && at + size_of::<Words>() <= HEADER));
    assert_eq!(places.iter().collect::<std::collections::BTreeSet<_>>().len(), COLOURS);
    let fd = crate::region::create("colours", Dmb::len(0)).expect("memfd");
    for token in 0..COLOURS as u64 {
        let region = Region::map(std::os::fd::AsFd::as_fd(&fd), Dmb::len(0)).expect("maps");
        let dmb = Dmb::new(region, token).expect("a DMB");
        assert_eq!(Dmb::start_of(dmb.address()), region.base() as usize);
        assert_eq!(dmb.span(0).0 as usize, region.base() as usize + HEADER);
        // SAFETY: nothing borrowed from it is left.
        unsafe { region.unmap() };
    }
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn a_dmb_that_is_reset_is_as_it_was_at_first() {
    let fd = crate::region::create("reset", Dmb::len(0)).expect("memfd");
    let region = Region::map(std::os::fd::AsFd::as_fd(&fd), Dmb::len(0)).expect("maps");
    // SAFETY: a mapping of this length, which only this thread uses.
    let bytes = unsafe { core::slice::from_raw_parts_mut(region.base(), region.len()) };
    bytes.fill(0xff);
    Dmb::reset(region);
    assert!(bytes[..PAGE].iter().all(|&byte| byte == 0) && bytes[PAGE..].iter().all(|&byte| byte != 0));
    // SAFETY: nothing borrowed from it is used any more.
    unsafe { region.unmap() };
}

#[test]
fn what_is_held_is_counted_and_ends() {
    let (most, unit) = (1000 * Held::TICKS, Held::TICKS);
    let held = Held::new((7 << 32) | 5, 20 * unit);
    assert_eq!([(7 << 32) | 9, (7 << 32) | 5, (7 << 32) | 2].map(|end| held.before(end)), [4, 0, 0]);
    assert_eq!(Held::new(u64::from(u32::MAX), 0).before(1 << 32), 1, "offsets beyond 32 bits");
    assert!(held.left(20 * unit, most) > most / 2 && held.left(20 * unit, most) <= most);
    assert!(held.left(19 * unit, most) > 0, "a clock that is a little behind");
    assert_eq!(held.left(1020 * unit, most), 0);
    assert_eq!(Held::new(0, 5000 * unit).left(0, most), 0, "held from the future");
    assert_eq!((held.moved(6).before(9), Held::NOTHING.before(9), Held::NOTHING.left(0, most)), (3, 0, 0));
    assert_eq!(held.moved(6).left(20 * unit, most), held.left(20 * unit, most));
}

#[test]
fn a_stopped_lane_takes_no_more_and_is_not_begun() {
    let w = Words::new();
    w.grant(1);
    assert!(w.begin(1, 9, 16384) && !w.begin(2, 9, 16384));
    let one = w.publish(Cursor::new(1, 0), 4).expect("open");
    w.flag(1, Cursor::STOP, 0).expect("same generation");
    assert_eq!(w.publish(one, 1), Err(one.with(Cursor::STOP)));
    assert_eq!(w.start(1), Some(9));
}

#[test]
fn what_is_taken_back_cannot_be_consumed() {
    let w = Words::new();
    w.grant(1);
    assert!(w.begin(1, 0, 16384));
    w.publish(Cursor::new(1, 0), 10).expect("open");
    let at = w.consume(Cursor::new(1, 0), 4).expect("bytes");
    assert_eq!(w.take_back(1), Some((4, 10)));
    assert!(w.consume(at, 1).is_err());
    assert_eq!(w.take_back(1), None);
}

#[test]
fn the_window_grows_where_both_windows_agree() {
    let mut memory = vec![0u8; Dmb::len(2) + 4096];
    let base = memory.as_mut_ptr().addr().next_multiple_of(4096);
    // SAFETY: page-aligned, and of the length of a DMB of 64 KiB.
    let whole = unsafe {
        Dmb::at(Dmb::address_of(memory.as_mut_ptr().with_addr(base).expose_provenance(), 64 << 10), 64 << 10)
    };
    let small = whole.with_window(16 << 10).expect("a window");
    assert_eq!(small.growth_point(0), 16 << 10);
    assert_eq!(small.growth_point((16 << 10) + 1), 48 << 10);
    assert_eq!(small.growth_point(48 << 10), 48 << 10);
    for cons in (0..(96 << 10)).step_by(1 << 10) {
        for prod in (cons..=cons + (16 << 10)).step_by(1 << 10) {
            let places = |dmb: &Dmb| (cons..prod).step_by(512).map(|at| dmb.span(at).0).collect::<Vec<_>>();
            let large = small.with_window(32 << 10).expect("a window");
            assert_eq!(
                small.doubled(cons, prod).is_some(),
                places(&small) == places(&large),
                "{cons} {prod}"
            );
        }
        let at = small.growth_point(cons);
        assert!(small.doubled(at - (16 << 10), at).is_some());
    }
    assert!(whole.doubled(0, 0).is_none());
    assert!(whole.with_window(0).is_none() && whole.with_window(3).is_none());
    assert!(whole.with_window(128 << 10).is_none() && whole.with_window(1 << 40).is_none());
}

#[test]
fn a_nap_stands_beside_the_sleeps_and_its_futex_is_the_epoch() {
    let w = Words::new();
    w.declare(Side::Readers, 1, 2);
    let nap = w.declare_nap(Side::Readers, 2);
    assert!(nap.naps() && nap.cqs() == 2 && nap.epoch() == 2);
    // SAFETY: half of a word of ours, which nobody writes meanwhile.
    let futex = || unsafe { w.futex(Side::Readers).read_volatile() };
    assert_eq!(futex(), 2);
    assert!(w.declare(Side::Readers, 3, 1).naps(), "who sleeps keeps the mark of who naps");
    assert_eq!(futex(), 3);
    w.answered(Side::Readers, w.waiting(Side::Readers));
    assert_eq!(futex(), 0);
}

#[test]
fn a_declaration_keeps_the_queues_of_those_who_sleep() {
    let w = Words::new();
    let first = w.declare(Side::Readers, 1, 0b01);
    let second = w.declare(Side::Readers, 2, 0b10);
    assert_eq!(second.cqs(), 0b11);
    w.answered(Side::Readers, first);
    assert!(w.waiting(Side::Readers).declared(), "an old answer does not clear a fresh sleep");
    w.answered(Side::Readers, second);
    assert!(!w.waiting(Side::Readers).declared());
}

#[test]
fn what_more_is_mapped_is_the_same_memory_at_another_address() {
    let ring = ring_size(3) as u32;
    let fd = crate::region::create("parts", Dmb::len(3)).expect("memfd");
    let region = Region::map(std::os::fd::AsFd::as_fd(&fd), HEADER + (16 << 10)).expect("maps");
    let small = Dmb::part(region, 5, ring).expect("a DMB");
    assert_eq!((small.mapped(), small.capacity(), small.window()), (16 << 10, ring, 16 << 10));
    assert!(small.is_at_its_end() && small.with_window(32 << 10).is_none(), "no more than is mapped");
    // SAFETY: the memfd is as long as that.
    let larger = unsafe { region.again(Dmb::len(3)) }.expect("maps");
    let address = Dmb::moved(small.address(), larger.base() as usize, ring);
    // SAFETY: made of a mapping of all of it.
    let whole = unsafe { Dmb::at(address, ring) };
    assert_eq!((Dmb::mapped_at(address), Dmb::len_at(address)), (ring, Dmb::len(3)));
    assert!(!whole.is_at_its_end() && whole.with_window(ring.into()).is_some());
    assert_ne!(small.address(), whole.address());
    small.words().set_reach(7);
    assert_eq!(whole.words().reach(), 7);
    // SAFETY: within both rings, which only this thread uses.
    unsafe { whole.span(100).0.write(9) };
    // SAFETY: as above.
    assert_eq!(unsafe { small.span(100).0.read() }, 9);
    // SAFETY: nobody uses what is behind.
    let cut = unsafe { larger.cut(HEADER + (16 << 10)) };
    assert_eq!((cut.base(), cut.len()), (larger.base(), HEADER + (16 << 10)));
    for lawless in [ring_size(3) as u32 + 1, 8 << 10] {
        assert!(Dmb::part(region, 5, lawless).is_none(), "no power of two, or less than is mapped");
    }
}

/// A DMB of 64 KiB in `memory`.
fn in_memory(memory: &mut Vec<u8>) -> Dmb {
    memory.resize(Dmb::len(2) + PAGE, 0);
    let base = memory.as_mut_ptr().addr().next_multiple_of(PAGE);
    let words = memory.as_mut_ptr().with_addr(base).expose_provenance();
    // SAFETY: page-aligned, and of the length of a DMB of 64 KiB.
    unsafe { Dmb::at(Dmb::address_of(words, 64 << 10), 64 << 10) }
}

/// Wherever the sender leaves the first ring, both ends find the bytes before that point there and the others behind the header, each
/// at a place of its own.
#[test]
fn a_sender_that_moves_leaves_what_is_unread_where_it_is() {
    let mut memory = Vec::new();
    let whole = in_memory(&mut memory);
    let first = whole.with_own_window(FIRST_WINDOW, 0).expect("mapped");
    let page = Dmb::start_of(whole.address());
    assert_eq!(first.span(0).0 as usize, page + PAGE - FIRST_WINDOW as usize);
    for until in (1..40_000u64).step_by(1023).chain([1 << 31, (1 << 31) + 1000, (1 << 46) + 5]) {
        for unread in [0, 1, 700, 2047, 2048].into_iter().filter(|&unread| unread <= until) {
            let cons = until - unread;
            let moved = first.moved_on(cons, until).expect("mapped");
            let end = until + u64::from(MIN_WINDOW);
            assert_eq!((moved.until() == 0, moved.room(cons, until)), (unread == 0, Some(MIN_WINDOW.into())));
            assert_eq!((moved.most(cons), moved.oldest(end) <= cons), (end - cons, true));
            whole.words().set_window(moved.said().0);
            let mut taken = std::collections::BTreeSet::new();
            for at in (cons..end).step_by(89) {
                let (place, room) = moved.span(at);
                let base = if at < until { first.span(at).0 } else { place };
                assert_eq!(place, base);
                assert_eq!((place as usize) < page + PAGE, at < until);
                assert!(taken.insert(place), "{at} has the place of another");
                assert!(room as u64 <= if at < until { until - at } else { MIN_WINDOW.into() });
                // A receiver that has read up to there, and an heir of the sender's.
                let seen = whole.as_sent_behind(at).expect("lawful");
                assert_eq!((seen.span(at), seen.most(at)), ((place, room), moved.most(at)));
                let heir = whole.as_left(at.max(until)).expect("lawful");
                assert_eq!((heir.until(), heir.window()), (moved.until(), moved.window()));
            }
            assert!(unread == 0 || whole.as_sent().is_none(), "not for the fast path");
            assert!(
                cons == 0 || unread != 2048 || whole.as_sent_behind(cons - 1).is_none(),
                "more than the first ring has"
            );
        }
    }
}

#[test]
fn a_window_grows_while_the_sender_moves_by_what_lies_behind_the_header() {
    let mut memory = Vec::new();
    let first = in_memory(&mut memory).with_own_window(FIRST_WINDOW, 0).expect("mapped");
    let moved = first.moved_on(1000, 2000).expect("mapped");
    assert_eq!(moved.doubled(1000, 16 << 10).map(|dmb| (dmb.window(), dmb.until())), Some((32 << 10, 2000)));
    assert!(moved.doubled(1000, (16 << 10) + 1).is_none());
    // What stands in the shared word is the peer's to write, too.
    for lawless in [
        Window::moving(2048, 3000),
        Window::moving(128 << 10, 3000),
        Window::moving(3 << 14, 3000),
        Window::moving(0, 0),
    ] {
        first.words().set_window(lawless.0);
        assert!(first.as_sent_behind(2500).is_none() && first.as_sent().is_none());
    }
}
