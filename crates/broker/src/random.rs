//! Random names.

use shunpike_wire::Gid;

/// A fresh GID: random, in the form of a version-4 UUID.
pub fn gid() -> Gid {
    let bits = u128::from(number()) << 64 | u128::from(number());
    let version = bits & !(0xf << 76) | 0x4 << 76;
    Gid(version & !(0x3 << 62) | 0x2 << 62)
}

/// A random number.
pub fn number() -> u64 {
    let mut bytes = [0; 8];
    // Up to 256 bytes come whole once the pool is initialised, which a booted system's is; EINTR aside.
    while rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(8) {}
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_random_uuids_of_version_4() {
        let (a, b) = (gid(), gid());
        assert_ne!(a, b);
        for gid in [a, b] {
            assert_eq!(gid.gid() >> 12 & 0xf, 4);
            assert_eq!(gid.gid_ext() >> 62, 2);
        }
    }
}
