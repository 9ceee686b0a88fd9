//! A service: a drop-in of its unit (systemd.unit(5)).

use super::below;
use crate::error::Error;
use crate::say::say;
use crate::{replace, socket};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where units are, the first of a name over the others.
pub(super) const PLACES: [&str; 7] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator",
    "/run/systemd/generator.late",
];

/// Ours, among those of a unit. It comes late, as drop-ins are read by name.
const DROP_IN: &str = "90-shunpike.conf";

/// How it begins.
const MARK: &str = "# Made by 'shunpike enable";

/// A service that there is, with what its files say.
pub struct Unit {
    pub(super) name: String,
    /// `KEY=VALUE` of the section Service, in the order in which they are read.
    service: Vec<(String, String)>,
    /// Whether it starts when the system is up that far that a service can, as all do that do not say otherwise.
    pub(super) is_ordinary: bool,
}

impl Unit {
    /// The service called `name`, below `root`.
    pub fn find(root: &Path, name: &str) -> Result<Self, Error> {
        let name = full_name(name)?;
        let template = template(&name);
        let names: Vec<&str> =
            [Some(&name), template.as_ref()].into_iter().flatten().map(String::as_str).collect();
        let mut all =
            names.iter().flat_map(|name| PLACES.iter().map(move |place| Path::new(place).join(name)));
        let is_there = |file: &PathBuf| {
            let (Some(place), Some(name)) = (file.parent(), file.file_name()) else { return false };
            fs::symlink_metadata(below(root, place).join(name)).is_ok()
        };
        let Some(file) = all.find(is_there) else {
            return Err(Error::NoUnit { name, root: root.to_owned() });
        };
        let target = below(root, &file);
        if target == root.join("dev/null") {
            return Err(Error::MaskedUnit { name, file: root.join(file.strip_prefix("/").unwrap_or(&file)) });
        }
        if drop_in(root, &name) == root.join("dev/null") {
            return Err(Error::MaskedDropIn { file: link(root, &name), name });
        }
        let text = fs::read_to_string(&target).map_err(|source| Error::Read { path: target, source })?;
        let whose = wider(&name).into_iter().chain(names.iter().rev().map(|name| (*name).to_owned()));
        let drop_ins = whose.flat_map(|name| drop_ins(root, &name));
        let drop_ins = drop_ins.map(|file| fs::read_to_string(below(root, &file)).unwrap_or_default());
        let texts: Vec<String> = [text].into_iter().chain(drop_ins).collect();
        Ok(Self::read(name, &texts))
    }

    /// One whose files say this.
    pub(super) fn read(name: String, texts: &[String]) -> Self {
        let all = |section| texts.iter().flat_map(move |text| assignments(text, section));
        let says_no =
            |value: String| ["0", "no", "n", "false", "f", "off"].contains(&value.to_lowercase().as_str());
        let last = all("[Unit]").rfind(|(key, _)| key == "DefaultDependencies");
        let is_ordinary = !last.is_some_and(|(_, value)| says_no(value));
        Self { name, service: all("[Service]").collect(), is_ordinary }
    }

    /// What is assigned to a setting, in that order.
    pub(super) fn values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.service.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// What the unit preloads itself, as its files write it.
    fn preloads(&self) -> Option<String> {
        let mut preloads = None;
        for value in self.values("Environment") {
            // An empty assignment takes back those before it.
            if value.is_empty() {
                preloads = None;
            }
            for word in words(value) {
                if let Some(libraries) = word.strip_prefix("LD_PRELOAD=") {
                    preloads = Some(libraries.to_owned());
                }
            }
        }
        preloads.filter(|libraries| !libraries.is_empty())
    }

    /// Puts it under Shunpike from its next start on; what to tell of it.
    pub fn enable(&self, root: &Path, library: &Path) -> Result<String, Error> {
        let library = library.display().to_string().replace('%', "%%");
        let others = self.preloads().map(|others| format!(":{others}")).unwrap_or_default();
        let (variable, socket) = (socket::VARIABLE, socket::SYSTEM);
        // The broker comes after what an early service may come before: systemd would start one of the two without the other.
        let order = "[Unit]\nWants=shunpike-broker.service\nAfter=shunpike-broker.service\n\n";
        let order = if self.is_ordinary { order } else { "" };
        let text = format!(
            "{MARK} {0}'; 'shunpike disable {0}' takes it away.\n\
             {order}[Service]\n\
             Environment=\"LD_PRELOAD={library}{others}\"\n\
             Environment={variable}={socket}\n",
            self.name
        );
        let file = drop_in(root, &self.name);
        replace::replace(&file, text.as_bytes())?;
        Ok(format!("{} is written; '{}' puts it under Shunpike", file.display(), restart(&self.name)))
    }
}

/// A service's whole name. Errors: it is of another kind, or no name of a unit.
pub fn full_name(name: &str) -> Result<String, Error> {
    const KINDS: [&str; 10] =
        ["socket", "device", "mount", "automount", "swap", "target", "path", "timer", "slice", "scope"];
    let is_of_names = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    let kind = name.rsplit_once('.').map(|(_, kind)| kind);
    if name.is_empty()
        || name.starts_with('.')
        || !name.chars().all(is_of_names)
        || kind.is_some_and(|kind| KINDS.contains(&kind))
    {
        return Err(Error::UnitName(name.to_owned()));
    }
    Ok(if kind == Some("service") { name.to_owned() } else { format!("{name}.service") })
}

/// `a@.service` of `a@b.service`.
fn template(name: &str) -> Option<String> {
    let (before, instance) = name.split_once('@')?;
    (instance != ".service").then(|| format!("{before}@.service"))
}

/// Whose drop-ins are a service's, too, the widest first: `service`, and of `a-b.service` `a-.service`.
fn wider(name: &str) -> Vec<String> {
    let dashes = name.match_indices('-').map(|(at, _)| format!("{}-.service", &name[..at]));
    std::iter::once("service".to_owned()).chain(dashes).filter(|wider| wider != name).collect()
}

/// Our drop-in of a unit, or what a link in its place leads to.
fn drop_in(root: &Path, name: &str) -> PathBuf {
    below(root, &Path::new(PLACES[0]).join(format!("{name}.d")).join(DROP_IN))
}

/// The same, where a link is itself meant.
fn link(root: &Path, name: &str) -> PathBuf {
    below(root, &Path::new(PLACES[0]).join(format!("{name}.d"))).join(DROP_IN)
}

/// The drop-ins of a unit, but for ours, in the order in which they are read.
fn drop_ins(root: &Path, name: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for place in PLACES {
        let directory = Path::new(place).join(format!("{name}.d"));
        let entries = fs::read_dir(below(root, &directory)).into_iter().flatten().flatten();
        let files = entries.map(|entry| directory.join(entry.file_name()));
        for file in files.filter(|file| file.extension().is_some_and(|kind| kind == "conf")) {
            let is_over = |other: &PathBuf| other.file_name() == file.file_name();
            if file.file_name().is_some_and(|name| name != DROP_IN) && !found.iter().any(is_over) {
                found.push(file);
            }
        }
    }
    found.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
    found
}

/// The assignments in a section, as `[Service]`.
fn assignments(text: &str, wanted: &str) -> Vec<(String, String)> {
    let joined = text.replace("\\\n", " ");
    let mut section = "";
    let mut found = Vec::new();
    for line in joined.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section == wanted
            && !line.starts_with(['#', ';'])
            && let Some((key, value)) = line.split_once('=')
        {
            found.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    found
}

/// Words, as systemd quotes them.
pub(super) fn words(value: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote, mut is_word) = (String::new(), None, false);
    for c in value.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => (quote, is_word) = (Some(c), true),
            None if c.is_whitespace() => {
                if is_word {
                    words.push(std::mem::take(&mut word));
                }
                is_word = false;
            }
            _ => {
                word.push(c);
                is_word = true;
            }
        }
    }
    if is_word {
        words.push(word);
    }
    words
}

/// The services that are enabled below `root`, those included that are not there any more.
pub fn enabled(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(below(root, Path::new(PLACES[0]))).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".d")?.to_owned()));
    let is_ours =
        |name: &String| fs::read_to_string(drop_in(root, name)).is_ok_and(|text| text.starts_with(MARK));
    let mut names: Vec<String> = names.filter(is_ours).collect();
    names.sort();
    names
}

/// Whether there is a drop-in of that name, whoever wrote it.
pub fn is_enabled(root: &Path, name: &str) -> bool {
    fs::symlink_metadata(link(root, name)).is_ok()
}

/// Takes our drop-in away; what to tell of it.
pub fn disable(root: &Path, name: &str) -> Result<String, Error> {
    // What a link there leads to is somebody else's: /dev/null, perhaps.
    let file = link(root, name);
    if !replace::remove(&file)? {
        return Ok(format!("{name} is not enabled: there is no {}", file.display()));
    }
    // Others' drop-ins may be there: then it stays.
    let _ = file.parent().map(fs::remove_dir);
    Ok(format!("{} is removed; '{}' takes it out of Shunpike", file.display(), restart(name)))
}

fn restart(name: &str) -> String {
    // A template is none that runs: its instances are.
    match name.strip_suffix("@.service") {
        Some(template) => format!("systemctl restart \"{template}@*\""),
        None => format!("systemctl restart {name}"),
    }
}

/// Has the running systemd read its units again.
pub fn reload(root: &Path) -> Result<(), Error> {
    if root != Path::new("/") || !Path::new("/run/systemd/system").is_dir() {
        return Ok(());
    }
    let told = Command::new("systemctl").arg("daemon-reload").status();
    if !told.is_ok_and(|status| status.success()) {
        say("systemd could not be told of it; do so by hand: 'systemctl daemon-reload'");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_names() {
        assert_eq!(full_name("redis").expect("a name"), "redis.service");
        assert_eq!(full_name("a@b.service").expect("a name"), "a@b.service");
        assert_eq!(full_name("php8.2-fpm").expect("a name"), "php8.2-fpm.service");
        for wrong in ["", ".service", "a.socket", "../x", "a/b", "a b"] {
            assert!(full_name(wrong).is_err(), "{wrong}");
        }
        assert_eq!(template("a@b.service").as_deref(), Some("a@.service"));
        assert_eq!(template("a@.service"), None);
        assert_eq!(wider("a.service"), ["service"]);
        assert_eq!(wider("a-b-c.service"), ["service", "a-.service", "a-b-.service"]);
    }

    #[test]
    fn what_a_unit_preloads_is_found_as_systemd_reads_it() {
        for (text, preloads) in [
            ("[Service]\nEnvironment=LD_PRELOAD=/a.so", Some("/a.so")),
            ("[Service]\nEnvironment=A=1 \"LD_PRELOAD=/a.so /b.so\" B=2", Some("/a.so /b.so")),
            ("[Service]\nEnvironment=A=1 \\\n  LD_PRELOAD=/a.so", Some("/a.so")),
            ("[Service]\nEnvironment=LD_PRELOAD=/a.so\nEnvironment=", None),
            ("[Service]\nEnvironment=LD_PRELOAD=/a.so\nEnvironment=LD_PRELOAD=/b.so", Some("/b.so")),
            ("[Unit]\nEnvironment=LD_PRELOAD=/a.so\n[Service]\n#Environment=LD_PRELOAD=/a.so", None),
        ] {
            let unit = Unit::read("x.service".into(), &[text.into()]);
            assert_eq!(unit.preloads().as_deref(), preloads, "{text}");
        }
    }

    #[test]
    fn an_early_service_does_not_wait_for_the_broker() {
        for (texts, is_ordinary) in [
            (&["[Service]\nDefaultDependencies=no"][..], true),
            (&["[Unit]\nDefaultDependencies = No"], false),
            (&["[Unit]\nDefaultDependencies=0", "[Unit]\nDefaultDependencies=yes"], true),
        ] {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            let (unit, root) =
                (Unit::read("x.service".into(), &texts), tempfile::tempdir().expect("a directory"));
            unit.enable(root.path(), Path::new("/l.so")).expect("written");
            let drop_in = fs::read_to_string(drop_in(root.path(), "x.service")).expect("there");
            assert_eq!(drop_in.contains("After=shunpike-broker.service"), is_ordinary, "{texts:?}");
            assert!(drop_in.contains("[Service]\nEnvironment=\"LD_PRELOAD=/l.so\"\n"), "{drop_in}");
            assert_eq!(unit.doubts(root.path(), Path::new("/l.so")).is_empty(), is_ordinary);
        }
    }
}
