//! Settings by a program's name: a page for the programs of each.

use crate::foreign::Shared;
use crate::settings::Knob;
use shunpike_shm::pages::KnobPage;
use shunpike_shm::published::Published;
use shunpike_wire::DmbSize;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Most names: a page and its memfd stay as long as the broker, also when the file does not have the name any more.
pub(crate) const MOST: usize = 64;

/// Settings for the programs of a name.
pub(crate) struct ProgramKnobs {
    /// What they look at.
    pub(crate) page: Published<KnobPage>,
    /// Its memfd.
    pub(crate) fd: Rc<Shared>,
}

impl ProgramKnobs {
    /// A page of its own, of a machine with so many CPUs.
    pub(crate) fn new(cpus: u32) -> std::io::Result<Self> {
        let page = Published::<KnobPage>::create("shunpike-knobs").map_err(std::io::Error::other)?;
        page.page().cpus.store(cpus, Ordering::Relaxed);
        let fd = Rc::new(page.fd().try_clone_to_owned()?.into());
        Ok(Self { page, fd })
    }
}

/// The ring that so many bytes ask for.
pub(crate) fn ring_of(value: u64) -> DmbSize {
    usize::try_from(value).ok().and_then(DmbSize::holding).unwrap_or(DmbSize::MIN)
}

/// Puts a value into a page that programs look at, where it is for them.
pub(crate) fn store(page: &KnobPage, knob: Knob, value: u64) {
    let number = u32::try_from(value).unwrap_or(u32::MAX);
    let word = match knob {
        Knob::MaxConnsPerLgr | Knob::LimitSmcHs => return,
        Knob::Rmem => return page.rmem_class.store(ring_of(value).class().into(), Ordering::Relaxed),
        // Release: what the broker says next is heard by programs that see this.
        Knob::Active => return page.active.store(number, Ordering::Release),
        Knob::DmbCopy => &page.dmb_copy,
        Knob::Wmem => &page.wmem,
        Knob::MaxCqs => &page.max_cqs,
        Knob::LendBytes => &page.lend_bytes,
        Knob::NominateCalls => &page.nominate_calls,
        Knob::NominateBytes => &page.nominate_bytes,
        Knob::Profile => &page.profile,
        Knob::SpinUs => &page.spin_us,
        Knob::GraceMs => &page.grace_ms,
    };
    word.store(number, Ordering::Relaxed);
}
