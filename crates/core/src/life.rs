//! The process's life: start-up, fork, and the end of all lanes. It calls all floors below, and only entries call it.

use shunpike_wire::Reason;

use crate::table::{self, Entry};
use crate::tls::epochs;
use crate::zerocopy::lending;
use crate::{
    above, clock, conn, descriptors, device, eager, holders, hope, link, process, reuse, session, sets, sys,
    tap, upgrade,
};

/// What the environment asks for.
#[derive(Copy, Clone, Default)]
pub struct Options {
    /// Nominate at connect and accept, and let the first data call wait for its lane.
    pub eager: bool,
    /// Which waits spin, in place of what the broker says: one of [`pages::profile`](shunpike_shm::pages::profile).
    pub profile: Option<u32>,
}

/// Start-up, once, before the program's first instruction where the loader allows it. In this order:
pub fn start(options: Options) {
    // 1. Who we are: fork is noticed by comparing.
    sys::note_pid();
    // 2. The clock that bounds spins.
    clock::calibrate();
    // 3. How many CPUs this process may spin on.
    process::count_cpus();
    // 4. How readers without a lock are waited for.
    epochs::start();
    process::follow_options(options.eager, options.profile);
    // 5. What lower floors have to tell.
    above::attach(&above::Above {
        settle: conn::settle_slowly,
        revoke: conn::revoke,
        revoke_for_good: conn::revoke_for_good,
        leave_to_sets: conn::leave_to_sets,
        moved: conn::moved,
    });
    session::attach(&session::Above {
        catch_up: |session| {
            upgrade::catch_up(session);
            conn::look_for_orphans(session);
            reuse::sweep(session);
        },
        heard: hope::heard,
        welcomed: eager::welcomed,
        take: upgrade::take,
        unanswered: eager::unanswered,
        gone: upgrade::broker_gone,
        changes_user: lending::close,
    });
    // 6. Room for descriptors of ours, before there are threads.
    descriptors::make_room();
    // 7. The table, last: before it every descriptor is libc's business.
    process::enable(table::init());
}

/// The program is about to install a filter of system calls, which may end it at one that it does not expect: every
/// connection goes back to TCP for good, and to libc alone.
pub fn confine() {
    leave(Reason::Confined);
    // Also where there are no lanes to leave: the filter minds any call of ours.
    process::set_confined();
}

/// Every connection goes back to TCP for good, and to libc alone, for this reason.
pub fn leave(reason: Reason) {
    if process::enabled() && !process::set_confined() {
        conn::let_go_of_all(reason);
        session::end();
    }
}

/// Before fork(): the child will hold every connection too, as a tenant of the arenas they are in.
pub fn before_fork() {
    sets::to_be_shared();
    // Not while a lane is being opened: it is mapped in both processes, or in neither's state. And not while another
    // thread is within what any lock protects: the child gets a copy of it, and no thread that would finish.
    session::hold_across_fork();
    sets::hold_across_fork();
    process::share_with_child();
    conn::give_sockets();
    device::note_shared();
    // From here on nothing is lent, as the connections are shared.
    lending::before_fork();
    process::hold_across_fork();
    device::hold_across_fork();
    descriptors::hold_across_fork();
}

fn let_go_after_fork() {
    descriptors::let_go_after_fork();
    device::let_go_after_fork();
    process::let_go_after_fork();
    sets::let_go_after_fork();
    session::let_go_after_fork();
}

/// After fork() in the parent, also where it failed.
pub fn after_fork_in_parent() {
    let_go_after_fork();
}

/// In a forked child, before anything else of ours: only this thread exists.
pub fn after_fork_in_child() {
    shunpike_shm::lock::after_fork_in_child();
    let_go_after_fork();
    sys::note_pid();
    epochs::after_fork_in_child();
    process::after_fork_in_child();
    forget_the_uncounted();
    descriptors::make_room();
    session::after_fork_in_child();
    link::after_fork_in_child();
    eager::after_fork_in_child();
    hope::after_fork_in_child();
    device::after_fork_in_child();
    lending::after_fork_in_child();
    // What it writes is of another process, whose session it is not.
    tap::stop_all();
}

/// What another thread of the parent made in the last moment: the child was not counted among its holders.
fn forget_the_uncounted() {
    for (fd, entry) in table::all() {
        if let Entry::Conn(conn) = entry
            && !holders::holds(conn.block)
        {
            table::take(fd);
        }
    }
}
