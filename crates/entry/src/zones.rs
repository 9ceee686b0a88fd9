//! Where a signal may find a thread between the program's own instructions and the library: in a stub, or in the blob. The program's handlers
//! are shown the registers as they are at its own call, as libcs look there for a cancellation, and runtimes for their functions. What was
//! entered and not yet shown to the library is undone, and entered again behind the handler; what was answered is completed.

use libc::ucontext_t;

use crate::start::{blob, zones};
use crate::state::{self, Description, FRAME, Frame};

/// What the blob says of its instructions (crates/inject/src/blob.s, where each is explained).
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum Zone {
    /// Elsewhere, or where it does not matter.
    None,
    Entry,
    Entered,
    Number,
    Flags,
    Inside,
    /// And where the look is made again.
    Look(usize),
    Back,
    Gone,
    Behind,
    BehindRcx,
}

/// That of an address.
pub fn at(address: usize) -> Zone {
    let blob = blob();
    if !blob.contains(&address) {
        return Zone::None;
    }
    let (mut row, mut kind, mut look) = (zones(), 0, None);
    loop {
        // SAFETY: the blob's table, whose last row is above all.
        let [from, next] = unsafe { *row };
        if from as usize > address - blob.start {
            break;
        }
        kind = next;
        if kind == 6 {
            look = look.or(Some(blob.start + from as usize));
        }
        row = row.wrapping_add(1);
    }
    match (kind, look) {
        (1, _) => Zone::Entry,
        (2, _) => Zone::Entered,
        (3, _) => Zone::Number,
        (4, _) => Zone::Flags,
        (5, _) => Zone::Inside,
        (6, Some(look)) => Zone::Look(look),
        (7, _) => Zone::Back,
        (8, _) => Zone::Gone,
        (9, _) => Zone::Behind,
        (10, _) => Zone::BehindRcx,
        _ => Zone::None,
    }
}

/// Runs a handler that came where the thread's stack is the program's, and shows it the program's registers. Where it leaves the address as
/// it is, what was under way goes on.
///
/// # Safety
/// The kernel's context of this delivery, and its zone.
pub unsafe fn as_programs(zone: Zone, context: *mut ucontext_t, handler: impl FnOnce()) {
    /// What stubs jump to, from the beginning of the blob (crates/inject/src/blob.rs).
    const ENTRY: usize = 64;
    let [address, count, eleventh] = [libc::REG_RIP, libc::REG_RCX, libc::REG_R11].map(|one| one as usize);
    // SAFETY: the caller's word. Where the zone says so, the word `top` is the frame of what is under way, rcx or r11 its description.
    unsafe {
        let registers = &raw mut (*context).uc_mcontext.gregs;
        let [here, rcx, r11] = [address, count, eleventh].map(|one| (*registers)[one] as usize);
        let description = |at: usize| core::ptr::with_exposed_provenance::<Description>(at);
        let top: *mut Frame = core::ptr::with_exposed_provenance_mut(state::top());
        let restore = |with_flags: bool| {
            (*registers)[libc::REG_RAX as usize] = (*top).number as i64;
            if with_flags {
                let flags = &mut (*registers)[libc::REG_EFL as usize];
                *flags = (*top).flags_among(*flags as usize) as i64;
            }
        };
        let (goes_on, shown, rcx) = match zone {
            Zone::Entry => (blob().start + ENTRY, (*description(rcx)).own, rcx),
            Zone::Entered => {
                state::set_top(top.addr() + FRAME);
                (blob().start + ENTRY, (*description(rcx)).own, rcx)
            }
            Zone::Number | Zone::Flags => {
                restore(zone == Zone::Flags);
                state::set_top(top.addr() + FRAME);
                (blob().start + ENTRY, (*(*top).description).own, (*top).description.addr())
            }
            Zone::Back => {
                restore(true);
                (*top).stack = usize::MAX;
                state::set_top((*top).up);
                (rcx, programs(rcx), rcx)
            }
            Zone::Gone => (rcx, programs(rcx), rcx),
            Zone::Behind => (here, (*description(r11)).behind(), rcx),
            Zone::BehindRcx => (here, (*description(rcx)).behind(), rcx),
            Zone::None | Zone::Inside | Zone::Look(_) => (here, programs(here), rcx),
        };
        (*registers)[address] = shown as i64;
        handler();
        if (*registers)[address] == shown as i64 {
            (*registers)[address] = goes_on as i64;
            (*registers)[count] = rcx as i64;
        }
    }
}

/// The program's own address for one in a stub, where its displaced instructions are; any other as it is.
fn programs(address: usize) -> usize {
    /// `lea rcx, [rip + x]; jmp x`, in front of a description.
    const ENTER: usize = 12;
    /// Behind it: two times a call and the same.
    const TWICE: [usize; 2] = [14, 28];
    const JUMP: usize = 5;
    let table = blob().end;
    let Some(at) = address.checked_sub(table).filter(|_| table != 0) else { return address };
    // SAFETY: the injector's table behind the blob, and the stubs behind that (crates/inject/src/patch.rs).
    let (row, description) = unsafe {
        let count = *core::ptr::with_exposed_provenance::<usize>(table);
        let rows =
            core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<[u32; 2]>(table + 8), count);
        let after = rows.partition_point(|[begin, _]| *begin as usize <= at);
        let Some(row) = after.checked_sub(1).and_then(|row| rows.get(row)) else { return address };
        let row = row.map(|word| word as usize);
        (row, core::ptr::with_exposed_provenance::<Description>(table + row[1]).read())
    };
    let Description { start, own, end, length, .. } = description;
    let (offset, before) = (at - row[0], row[1] - ENTER - row[0]);
    // The same instructions, unless they became longer: then what is certain.
    if offset < before {
        return if before == own - start { start + offset } else { start };
    }
    let Some(behind) = at.checked_sub(row[1] + size_of::<Description>()) else { return own };
    if behind < TWICE[1] {
        return if behind % TWICE[0] == 0 { own } else { description.behind() };
    }
    match behind - TWICE[1] {
        _ if end == own => address,
        0 => own,
        moved if moved < 2 + length && length == end - description.behind() => own + moved,
        moved if moved < 2 + length => description.behind(),
        moved if moved < 2 + length + JUMP => end,
        _ => address,
    }
}
