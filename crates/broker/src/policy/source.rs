//! Where a policy is read from: at the start, and again when the operator says so.

use super::{Configuration, Policy, PolicyError, load};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The system-wide broker's policy.
pub const SYSTEM_FILE: &str = "/etc/shunpike/broker.toml";

/// A file, and what holds without it.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file; `None`: there is none for this broker.
    pub path: Option<PathBuf>,
    /// Whether the operator has named it: then it has to be there.
    pub is_named: bool,
    /// Whether it is for a broker of one user.
    pub private: bool,
    /// What holds where the file says nothing.
    pub built_in: Policy,
}

impl Source {
    /// No file.
    pub fn none(private: bool, built_in: Policy) -> Self {
        Self { path: None, is_named: false, private, built_in }
    }

    /// What the file says now. Errors: as [`load`].
    pub fn read(&self) -> Result<Configuration, PolicyError> {
        // One that cannot be read must not be passed over in silence: only one that is not there is.
        let file = self.path.as_ref().filter(|path| self.is_named || std::fs::symlink_metadata(path).is_ok());
        match file {
            Some(path) => load(path, self.private, self.built_in.clone()),
            None => Ok(Configuration {
                policy: self.built_in.clone(),
                settings: Vec::new(),
                programs: BTreeMap::new(),
                metrics: None,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Peers;

    #[test]
    fn a_file_that_is_not_there_is_the_built_in_policy_unless_it_was_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("broker.toml");
        let mut source =
            Source { path: Some(path.clone()), ..Source::none(false, Policy::system_wide(8, 8)) };
        assert_eq!(source.read().unwrap().policy, Policy::system_wide(8, 8));
        source.is_named = true;
        assert!(source.read().is_err());
        std::fs::write(&path, "[peers]\nallow = \"any\"\n").unwrap();
        source.is_named = false;
        let policy = source.read().unwrap().policy;
        assert_eq!((policy.peers, policy.peers_line), (Peers::Any, Some(2)));
        std::fs::write(&path, "nonsense").unwrap();
        assert!(source.read().is_err(), "one that is there is not passed over");
    }
}
