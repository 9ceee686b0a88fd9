//! For tests: a thread whose system calls the kernel refuses.

/// From now on the calling thread, and no other, gets `errno` for each `number` whose arguments (their lower halves) at these places are
/// these. It must be a thread of the test's own: a filter stays.
pub(crate) fn refuse(number: libc::c_long, arguments: &[(u32, u32)], errno: i32) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |at: usize| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at as u32);
    // To the last but one statement where it differs.
    let tests = arguments.iter().map(|&(at, is)| (16 + 8 * at as usize, is));
    let all: Vec<_> = [(0, number as u32)].into_iter().chain(tests).collect();
    let mut filter = Vec::new();
    for (n, (at, is)) in all.iter().enumerate() {
        filter.push(load(*at));
        let jf = 2 * (all.len() - 1 - n) as u8 + 1;
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        filter.push(libc::sock_filter { code, jt: 0, jf, k: *is });
    }
    let give = |what| statement(libc::BPF_RET | libc::BPF_K, what);
    filter.push(give(libc::SECCOMP_RET_ERRNO | errno as u32));
    filter.push(give(libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: program and filter live through the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let rc = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program);
        assert_eq!(rc, 0, "seccomp: {}", std::io::Error::last_os_error());
    }
}
