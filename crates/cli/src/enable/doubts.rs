//! What of a unit may keep it from lanes, though it is enabled. Settings are folded as systemd folds them (systemd.exec(5)).

use super::below;
use super::unit::{PLACES, Unit, words};
use crate::socket;
use std::fs;
use std::path::{Path, PathBuf};

impl Unit {
    /// What of the unit, enabled with `library`, may keep it from lanes.
    pub fn doubts(&self, root: &Path, library: &Path) -> Vec<String> {
        let mut doubts = Vec::new();
        let name = &self.name;
        if !self.is_ordinary {
            doubts.push(format!(
                "{name} may start before the broker can (DefaultDependencies=no): it is on TCP until it finds the broker, which it looks for again"
            ));
        }
        doubts.extend(self.starts_nothing(root));
        if self.is_without_unix_sockets() {
            doubts.push(format!(
                "{name} may use no sockets of AF_UNIX: the broker is not reached; add RestrictAddressFamilies=AF_UNIX ('systemctl edit {name}')"
            ));
        }
        for key in ["RootDirectory", "RootImage"].into_iter().filter(|key| self.last(key).is_some()) {
            doubts.push(format!(
                "{name} has a root of its own ({key}=): bind the library and /run/shunpike into it (BindReadOnlyPaths=, by 'systemctl edit {name}')"
            ));
        }
        let unset = self.folded("UnsetEnvironment").into_iter().flat_map(words);
        for variable in unset.filter(|word| [PRELOAD, socket::VARIABLE].contains(&word.as_str())) {
            doubts.push(format!(
                "{name} has {variable} taken out of its environment (UnsetEnvironment=): it is on TCP; leave that out ('systemctl edit --full {name}')"
            ));
        }
        for file in self.folded("EnvironmentFile").into_iter().map(|file| file.trim_start_matches('-')) {
            let text = fs::read_to_string(below(root, Path::new(file))).unwrap_or_default();
            if text.lines().any(|line| line.trim_start().starts_with("LD_PRELOAD=")) {
                doubts.push(format!(
                    "{name} takes LD_PRELOAD from {file}, which is over the drop-in's: write the library into it, too"
                ));
            }
        }
        let broker = Path::new(socket::SYSTEM).parent().unwrap_or(Path::new("/"));
        for (what, key) in [library, broker].into_iter().filter_map(|path| Some((path, self.hides(path)?))) {
            let what = what.display();
            doubts.push(format!(
                "{name} does not see {what} ({key}): it is on TCP; add BindReadOnlyPaths={what} ('systemctl edit {name}')"
            ));
        }
        doubts
    }

    /// The last value of a setting that has one; `None` also where that is empty.
    fn last<'a>(&'a self, key: &'a str) -> Option<&'a str> {
        self.values(key).last().filter(|value| !value.is_empty())
    }

    /// The values of a setting that is a list: an empty one takes back those before it.
    fn folded<'a>(&'a self, key: &'a str) -> Vec<&'a str> {
        let mut values = Vec::new();
        for value in self.values(key) {
            if value.is_empty() {
                values.clear();
            } else {
                values.push(value);
            }
        }
        values
    }

    /// The first assignment says whether the list is of what is allowed, or, with a tilde, of what is not; one of the other kind
    /// takes away from it.
    fn is_without_unix_sockets(&self) -> bool {
        let (mut allows, mut has) = (None, false);
        for value in self.folded("RestrictAddressFamilies") {
            let (list, is_allowed) = value.strip_prefix('~').map_or((value, true), |list| (list, false));
            if words(list).iter().any(|family| ["AF_UNIX", "AF_LOCAL"].contains(&family.as_str())) {
                has = *allows.get_or_insert(is_allowed) == is_allowed;
            } else {
                allows.get_or_insert(is_allowed);
            }
        }
        allows.is_some_and(|allows| allows != has)
    }

    /// The setting that hides `path` from the unit's processes.
    fn hides(&self, path: &Path) -> Option<String> {
        let paths = |key| self.folded(key).into_iter().flat_map(words).map(|word| named_path(&word));
        let is_in = |above: PathBuf| path.starts_with(above);
        if ["BindPaths", "BindReadOnlyPaths"].into_iter().flat_map(paths).any(is_in) {
            return None;
        }
        let listed = ["InaccessiblePaths", "TemporaryFileSystem"];
        let home = ["/home", "/root", "/run/user"];
        let is_home_hidden = self
            .last("ProtectHome")
            .is_some_and(|value| !["0", "no", "n", "false", "f", "off", "read-only"].contains(&value));
        let listed = listed.into_iter().find(|key| paths(key).any(is_in));
        listed
            .or((is_home_hidden && home.iter().any(|home| path.starts_with(home))).then_some("ProtectHome"))
            .map(|key| format!("{key}="))
    }

    /// A unit that stands for its instances, as Debian's postgresql.service does.
    fn starts_nothing(&self, root: &Path) -> Option<String> {
        let command = words(self.folded("ExecStart").last()?);
        let instances = self.name.strip_suffix(".service")?.to_owned() + "@";
        let is_there =
            |place: &&str| below(root, &Path::new(place).join(format!("{instances}.service"))).is_file();
        let is_nothing = ["/bin/true", "/usr/bin/true"].contains(&command.first()?.as_str());
        (is_nothing && PLACES.iter().any(is_there)).then(|| {
            format!(
                "{0} starts nothing itself: what serves are instances of {instances}.service; 'shunpike enable {instances}' is for them",
                self.name
            )
        })
    }
}

const PRELOAD: &str = "LD_PRELOAD";

/// The path in a word as `-+/run:ro`: of `BindPaths=SOURCE:DESTINATION` the destination.
fn named_path(word: &str) -> PathBuf {
    let word = word.trim_start_matches(['-', '+']);
    let (first, rest) = word.split_once(':').unwrap_or((word, ""));
    let second = rest.split(':').next().unwrap_or_default();
    if second.starts_with('/') { second.into() } else { first.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubts(text: &str, library: &str) -> Vec<String> {
        let root = tempfile::tempdir().expect("a directory");
        let unit = Unit::read("x.service".into(), &[format!("[Service]\n{text}")]);
        unit.doubts(root.path(), Path::new(library))
    }

    #[test]
    fn settings_are_folded_as_systemd_folds_them() {
        for (text, word) in [
            ("RestrictAddressFamilies=AF_INET", Some("AF_UNIX")),
            ("RestrictAddressFamilies=AF_INET\nRestrictAddressFamilies=AF_UNIX", None),
            ("RestrictAddressFamilies=AF_INET\nRestrictAddressFamilies=", None),
            ("RestrictAddressFamilies=none", Some("AF_UNIX")),
            ("RestrictAddressFamilies=~AF_UNIX AF_PACKET", Some("AF_UNIX")),
            ("RestrictAddressFamilies=~AF_PACKET", None),
            ("RestrictAddressFamilies=~AF_UNIX\nRestrictAddressFamilies=AF_UNIX", None),
            ("RestrictAddressFamilies=AF_UNIX\nRestrictAddressFamilies=~AF_UNIX", Some("AF_UNIX")),
            ("RootDirectory=/srv", Some("RootDirectory")),
            ("RootDirectory=/srv\nRootDirectory=", None),
            ("UnsetEnvironment=A LD_PRELOAD", Some("UnsetEnvironment")),
            ("UnsetEnvironment=LD_PRELOAD\nUnsetEnvironment=", None),
            ("InaccessiblePaths=-/run", Some("/run/shunpike (InaccessiblePaths=)")),
            ("InaccessiblePaths=/run/other", None),
            ("TemporaryFileSystem=/run:ro", Some("/run/shunpike (TemporaryFileSystem=)")),
            ("TemporaryFileSystem=/run:ro\nBindReadOnlyPaths=/run/shunpike", None),
            ("TemporaryFileSystem=/usr", Some("/usr/lib/l.so (TemporaryFileSystem=)")),
            ("ProtectHome=yes", None),
        ] {
            let said = doubts(text, "/usr/lib/l.so");
            assert_eq!(said.len(), usize::from(word.is_some()), "{text}: {said:?}");
            assert!(word.is_none_or(|word| said[0].contains(word)), "{text}: {said:?}");
        }
    }

    #[test]
    fn a_library_in_a_home_directory_may_be_hidden() {
        for (text, library, is_hidden) in [
            ("ProtectHome=yes", "/home/u/l.so", true),
            ("ProtectHome=tmpfs", "/root/l.so", true),
            ("ProtectHome=read-only", "/home/u/l.so", false),
            ("ProtectHome=yes\nProtectHome=no", "/home/u/l.so", false),
            ("ProtectHome=yes\nBindReadOnlyPaths=/home/u", "/home/u/l.so", false),
        ] {
            let said = doubts(text, library);
            assert_eq!(said.iter().any(|doubt| doubt.contains("ProtectHome")), is_hidden, "{text}: {said:?}");
        }
    }

    #[test]
    fn a_unit_that_stands_for_its_instances_is_told_from_one_that_runs_once() {
        let root = tempfile::tempdir().expect("a directory");
        let unit = Unit::read("db.service".into(), &["[Service]\nExecStart=/bin/true\n".into()]);
        assert!(unit.doubts(root.path(), Path::new("/l.so")).is_empty());
        let place = below(root.path(), Path::new(PLACES[0]));
        fs::create_dir_all(&place).expect("a directory");
        fs::write(place.join("db@.service"), "").expect("a template");
        let said = unit.doubts(root.path(), Path::new("/l.so"));
        assert!(said.len() == 1 && said[0].contains("'shunpike enable db@'"), "{said:?}");
    }
}
