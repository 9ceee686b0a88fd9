//! The policy's file: TOML, every key optional, nothing unknown taken.

use super::group::{self, NoNumber};
use super::{Group, LEAST_BYTES, Limits, Peers, Policy};
use crate::address::Address;
use crate::program_knobs::MOST as MOST_PROGRAMS;
use crate::settings::{Knob, Origin, Setting};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;
use toml::Spanned;

/// TASK_COMM_LEN, without the NUL.
const LONGEST_NAME: usize = 15;

/// A policy that cannot be used.
#[derive(Debug)]
pub struct PolicyError {
    /// The file.
    pub path: PathBuf,
    /// Line, from 1, and what it says; `None` where the whole file is meant.
    pub line: Option<(usize, String)>,
    /// What is wrong, and what is allowed.
    pub what: String,
}

impl core::fmt::Display for PolicyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.line {
            Some((number, text)) => {
                write!(f, "{}, line {number} ({text}): {}", self.path.display(), self.what)
            }
            None => write!(f, "{}: {}", self.path.display(), self.what),
        }
    }
}

impl std::error::Error for PolicyError {}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Document {
    peers: Option<Spanned<PeersTable>>,
    socket: Option<Spanned<SocketTable>>,
    limits: LimitsTables,
    sysctl: BTreeMap<String, Spanned<Scalar>>,
    program: BTreeMap<String, Spanned<BTreeMap<String, Spanned<Scalar>>>>,
    metrics: MetricsTable,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct MetricsTable {
    listen: Option<Spanned<String>>,
}

/// A setting's value as `NAME=VALUE` has it: of `30`, `"256K"`, `true`.
struct Scalar(String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        // Not derived: serde would not say what is allowed.
        impl Visitor<'_> for Text {
            type Value = Scalar;

            fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("a whole number, text as \"256K\", or true or false")
            }

            fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }

            fn visit_bool<E>(self, on: bool) -> Result<Scalar, E> {
                // A word, which a setting that is no switch does not take.
                Ok(Scalar(if on { "on" } else { "off" }.to_owned()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// What a file says.
#[derive(Debug)]
pub struct Configuration {
    /// Who may be a peer of whom, and limits.
    pub policy: Policy,
    /// Settings.
    pub settings: Vec<Setting>,
    /// Those of programs by their names, in place of these.
    pub programs: BTreeMap<String, Vec<Setting>>,
    /// Where metrics are served.
    pub metrics: Option<Address>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PeersTable {
    allow: Spanned<Allow>,
    groups: Option<Spanned<Vec<Spanned<String>>>>,
}

#[derive(Deserialize, Copy, Clone, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Allow {
    SameUser,
    Groups,
    Any,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SocketTable {
    mode: Option<Spanned<String>>,
    group: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct LimitsTables {
    process: LimitsTable,
    user: Option<Spanned<LimitsTable>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct LimitsTable {
    sessions: Option<Spanned<i64>>,
    dmbs: Option<Spanned<i64>>,
    memory_mib: Option<Spanned<i64>>,
    nominations_per_second: Option<Spanned<i64>>,
}

/// Reads `path` over `built_in`, for a broker that is `private` or not.
/// Errors: a file that others could write to, a key that there is not, a value that is not allowed.
pub fn load(path: &Path, private: bool, built_in: Policy) -> Result<Configuration, PolicyError> {
    let whole = |what: String| PolicyError { path: path.to_owned(), line: None, what };
    let text = read(path).map_err(|error| whole(error.to_string()))?;
    let source = Source { path, text: &text, until: Instant::now() + group::PATIENCE };
    let document: Document = toml::from_str(&text).map_err(|error| match error.span() {
        Some(span) => source.error(span, error.message().to_owned()),
        None => whole(error.message().to_owned()),
    })?;
    let mut policy = Policy { file: Some(path.to_owned()), ..built_in };
    if private {
        let spans = [
            document.peers.as_ref().map(Spanned::span),
            document.socket.as_ref().map(Spanned::span),
            document.limits.user.as_ref().map(Spanned::span),
        ];
        if let Some(span) = spans.into_iter().flatten().next() {
            let what = "a private broker serves one user, at a socket of that user's alone; only \
                        [limits.process], [sysctl] and [program.NAME] are for it";
            return Err(source.error(span, what.to_owned()));
        }
    }
    if let Some(peers) = document.peers {
        let peers = peers.into_inner();
        policy.peers_line = Some(source.line_of(peers.allow.span().start));
        policy.peers = source.peers(peers)?;
    }
    if let Some(socket) = document.socket {
        source.socket(socket.into_inner(), &mut policy)?;
    }
    source.limits(document.limits.process, &mut policy.process)?;
    if let Some(user) = document.limits.user {
        source.limits(user.into_inner(), &mut policy.user)?;
    }
    let settings = source.settings(document.sysctl)?;
    let programs = source.programs(document.program)?;
    let address = |listen: Spanned<String>| {
        listen.get_ref().parse::<Address>().map_err(|what| source.error(listen.span(), what))
    };
    let metrics = document.metrics.listen.map(address).transpose()?;
    Ok(Configuration { policy, settings, programs, metrics })
}

/// Who may write to the file decides who is joined with whom.
fn read(path: &Path) -> io::Result<String> {
    const LARGEST: u64 = 1 << 20;
    // A pipe is no policy, and would have us wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let meta = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    let safe = meta.is_file() && (meta.uid() == own || meta.uid() == 0) && meta.mode() & 0o022 == 0;
    if !safe {
        return Err(io::Error::other(
            "is not a file of yours (or root's) that only its owner can write to; chown it and chmod go-w it",
        ));
    }
    let mut text = String::new();
    // One byte more: a policy that was cut would be another policy.
    if file.take(LARGEST + 1).read_to_string(&mut text)? as u64 > LARGEST {
        return Err(io::Error::other("is larger than 1 MiB, which no policy is"));
    }
    Ok(text)
}

struct Source<'a> {
    path: &'a Path,
    text: &'a str,
    /// Until when groups are asked for.
    until: Instant,
}

impl Source<'_> {
    fn error(&self, span: Range<usize>, what: String) -> PolicyError {
        let number = self.line_of(span.start);
        let line = self.text.lines().nth(number - 1).unwrap_or_default().trim().to_owned();
        PolicyError { path: self.path.to_owned(), line: Some((number, line)), what }
    }

    /// The line that a place of the text is in, from 1.
    fn line_of(&self, at: usize) -> usize {
        let before = self.text.get(..at).unwrap_or(self.text);
        before.matches('\n').count() + 1
    }

    fn peers(&self, table: PeersTable) -> Result<Peers, PolicyError> {
        let allow = table.allow.span();
        let groups = match (table.allow.into_inner(), table.groups) {
            (Allow::Groups, Some(groups)) if !groups.get_ref().is_empty() => groups.into_inner(),
            (Allow::Groups, groups) => {
                let span = groups.map_or(allow, |groups| groups.span());
                let what = "allow = \"groups\" needs groups = [\"NAME\", ...] with one name at least";
                return Err(self.error(span, what.to_owned()));
            }
            (_, Some(groups)) => {
                let what = "groups belong to allow = \"groups\" only";
                return Err(self.error(groups.span(), what.to_owned()));
            }
            (Allow::SameUser, None) => return Ok(Peers::SameUser),
            (Allow::Any, None) => return Ok(Peers::Any),
        };
        groups.into_iter().map(|name| self.group(name)).collect::<Result<_, _>>().map(Peers::Groups)
    }

    fn socket(&self, table: SocketTable, policy: &mut Policy) -> Result<(), PolicyError> {
        if let Some(mode) = table.mode {
            let parsed = u32::from_str_radix(mode.get_ref(), 8).ok().filter(|mode| mode & !0o666 == 0);
            policy.socket_mode = parsed.ok_or_else(|| {
                let what = "write the mode as octal text of read and write bits, as \"0666\" or \"0660\"";
                self.error(mode.span(), what.to_owned())
            })?;
        }
        if let Some(group) = table.group {
            policy.socket_group = Some(self.group(group)?);
        }
        Ok(())
    }

    fn settings(&self, table: BTreeMap<String, Spanned<Scalar>>) -> Result<Vec<Setting>, PolicyError> {
        let origin = Origin::File(self.path.display().to_string());
        let mut settings: Vec<Setting> = Vec::new();
        for (name, value) in table {
            let setting = Setting::parse(&format!("{name}={}", value.get_ref().0), origin.clone())
                .map_err(|failure| self.error(value.span(), format!("{}; {}", failure.what, failure.hint)))?;
            // Which of two would hold, nobody could tell.
            if settings.iter().any(|other| other.knob == setting.knob) {
                let what = format!(
                    "{} is set twice here, under two of its names; leave one of the two away",
                    setting.knob.name()
                );
                return Err(self.error(value.span(), what));
            }
            settings.push(setting);
        }
        Ok(settings)
    }

    fn programs(
        &self,
        tables: BTreeMap<String, Spanned<BTreeMap<String, Spanned<Scalar>>>>,
    ) -> Result<BTreeMap<String, Vec<Setting>>, PolicyError> {
        let one = |(name, table): (String, Spanned<BTreeMap<String, Spanned<Scalar>>>)| {
            let span = table.span();
            if name.is_empty() {
                let what =
                    "a program has a name: write it as 'shunpike ss' shows it, as [program.redis-server]";
                return Err(self.error(span, what.to_owned()));
            }
            if name.len() > LONGEST_NAME {
                // A letter of several bytes is kept whole or not at all.
                let end =
                    (0..=LONGEST_NAME).rev().find(|end| name.is_char_boundary(*end)).unwrap_or_default();
                let kept = name.get(..end).unwrap_or_default();
                let what = format!(
                    "the kernel keeps {LONGEST_NAME} bytes of a program's name: write '{kept}', as 'shunpike ss' shows it"
                );
                return Err(self.error(span, what));
            }
            let settings = self.settings(table.into_inner())?;
            match settings.iter().find(|setting| !setting.knob.is_of_a_program()) {
                None => Ok((name, settings)),
                Some(setting) => {
                    let own = Knob::ALL.into_iter().filter(|knob| knob.is_of_a_program()).map(Knob::name);
                    let own = own.collect::<Vec<_>>().join(", ");
                    let what = format!(
                        "{} is the broker's, for all programs; a program has {own}",
                        setting.knob.name()
                    );
                    Err(self.error(span, what))
                }
            }
        };
        if let Some((_, table)) = tables.iter().nth(MOST_PROGRAMS) {
            let what = format!(
                "settings for the programs of more than {MOST_PROGRAMS} names: each has a page of the broker's memory"
            );
            return Err(self.error(table.span(), what));
        }
        tables.into_iter().map(one).collect()
    }

    fn limits(&self, table: LimitsTable, limits: &mut Limits) -> Result<(), PolicyError> {
        if let Some(sessions) = table.sessions {
            limits.sessions = self.number(sessions, 1, 1 << 20)? as usize;
        }
        if let Some(dmbs) = table.dmbs {
            limits.dmbs = self.number(dmbs, 0, 1 << 24)? as usize;
        }
        if let Some(memory) = table.memory_mib {
            let least = LEAST_BYTES.div_ceil(1 << 20) as i64;
            limits.bytes = self.number(memory, least, 1 << 30)? << 20;
        }
        if let Some(nominations) = table.nominations_per_second {
            limits.nominations = self.number(nominations, 0, 1_000_000)? as u32;
        }
        Ok(())
    }

    fn number(&self, value: Spanned<i64>, least: i64, most: i64) -> Result<u64, PolicyError> {
        if (least..=most).contains(value.get_ref()) {
            return Ok(value.into_inner() as u64);
        }
        Err(self.error(value.span(), format!("allowed are {least} to {most}")))
    }

    fn group(&self, name: Spanned<String>) -> Result<Group, PolicyError> {
        let known = name.get_ref();
        let what = match known.parse().or_else(|_| group::number(known, self.until)) {
            Ok(gid) => return Ok(Group { name: name.into_inner(), gid }),
            Err(NoNumber::NoSuchGroup) => {
                format!("this system knows no group '{known}'; create it, or write a number")
            }
            Err(NoNumber::NotAsked(why)) => {
                format!(
                    "/etc/group has no '{known}', and what else knows groups cannot be asked ({why}); write the group's number"
                )
            }
        };
        Err(self.error(name.span(), what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn loaded(text: &str, private: bool) -> Result<Policy, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("broker.toml");
        std::fs::write(&path, text).unwrap();
        load(&path, private, Policy::system_wide(100, 1000))
            .map(|file| file.policy)
            .map_err(|error| error.to_string().replace(&format!("{}", path.display()), "FILE"))
    }

    /// It was cut, and what was left was the policy.
    #[test]
    fn a_policy_that_is_too_large_is_none() {
        let comment = |len: usize| format!("#{}\n", "x".repeat(len - 2));
        assert!(loaded(&comment(1 << 20), false).is_ok());
        let error = loaded(&comment((1 << 20) + 1), false).unwrap_err();
        assert!(error.contains("larger than 1 MiB"), "{error}");
    }

    #[test]
    fn a_pipe_is_no_policy_and_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("broker.toml");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        assert!(load(&path, false, Policy::system_wide(100, 1000)).is_err());
    }

    #[test]
    fn programs_have_settings_of_their_own() {
        let settings = |text: &str| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("broker.toml");
            std::fs::write(&path, text).unwrap();
            load(&path, true, Policy::private()).map(|file| file.programs).map_err(|error| error.to_string())
        };
        let many: String = (0..65).map(|n| format!("[program.p{n}]\nspin_us = 1\n")).collect();
        let found = settings("[program.redis-server]\nprofile = \"latency\"\nspin_us = 50\n").unwrap();
        let found: Vec<_> = found["redis-server"].iter().map(|one| (one.knob, one.value)).collect();
        assert_eq!(found, [(Knob::Profile, 1), (Knob::SpinUs, 50)]);
        for (text, why) in [
            ("[program.redis]\nactive = false\n", "active is the broker's, for all programs"),
            ("[program.redis]\nspeed = 1\n", "no such setting"),
            ("[program.a-name-that-is-long]\nspin_us = 1\n", "write 'a-name-that-is-'"),
            ("[program.\"12345678901234\u{e9}\"]\nspin_us = 1\n", "write '12345678901234'"),
            ("[program.\"\"]\nspin_us = 1\n", "a program has a name"),
            (&many, "more than 64 names"),
        ] {
            let error = settings(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn nothing_said_is_the_built_in_policy() {
        let policy = loaded("# nothing\n", false).unwrap();
        assert_eq!(Policy { file: None, ..policy }, Policy::system_wide(100, 1000));
    }

    #[test]
    fn every_key_is_taken() {
        let policy = loaded(
            "[peers]\nallow = \"groups\"\ngroups = [\"root\", \"4711\"]\n[socket]\nmode = \"0660\"\n\
             group = \"root\"\n[limits.user]\nsessions = 5\ndmbs = 6\nmemory_mib = 70\n\
             nominations_per_second = 8\n[limits.process]\nsessions = 1\ndmbs = 2\nmemory_mib = 30\n\
             nominations_per_second = 4\n",
            false,
        )
        .unwrap();
        let group = |name: &str, gid| Group { name: name.to_owned(), gid };
        assert_eq!(policy.peers, Peers::Groups(vec![group("root", 0), group("4711", 4711)]));
        assert_eq!((policy.socket_mode, policy.socket_group.clone()), (0o660, Some(group("root", 0))));
        assert_eq!(policy.user, Limits { sessions: 5, dmbs: 6, bytes: 70 << 20, nominations: 8 });
        assert_eq!(policy.process, Limits { sessions: 1, dmbs: 2, bytes: 30 << 20, nominations: 4 });
        let any = loaded("peers.allow = \"any\"", false).unwrap();
        assert_eq!(any.peers, Peers::Any);
        assert_eq!(any.report().peers, "any");
    }

    #[test]
    fn what_is_wrong_is_said_with_file_line_key_and_what_is_allowed() {
        for (text, wanted) in [
            (
                "\n[peers]\nallow = \"all\"\n",
                "FILE, line 3 (allow = \"all\"): unknown variant `all`, expected one of `same-user`, `groups`, `any`",
            ),
            (
                "[peers]\nalow = \"any\"\n",
                "FILE, line 2 (alow = \"any\"): unknown field `alow`, expected `allow` or `groups`",
            ),
            (
                "[peers]\nallow = \"any\"\ngroups = [\"root\"]\n",
                "FILE, line 3 (groups = [\"root\"]): groups belong to",
            ),
            (
                "[peers]\nallow = \"groups\"\ngroups = []\n",
                "FILE, line 3 (groups = []): allow = \"groups\" needs",
            ),
            (
                "\n[peers]\nallow = \"groups\"\n",
                "FILE, line 3 (allow = \"groups\"): allow = \"groups\" needs",
            ),
            (
                "[peers]\nallow = \"groups\"\ngroups = [\"no-such-group\"]\n",
                "FILE, line 3 (groups = [\"no-such-group\"]): this system knows no group 'no-such-group'",
            ),
            ("[socket]\nmode = \"0777\"\n", "FILE, line 2 (mode = \"0777\"): write the mode"),
            ("[socket]\nmode = 438\n", "FILE, line 2 (mode = 438): invalid type"),
            ("[limits.user]\nmemory_mib = 1\n", "FILE, line 2 (memory_mib = 1): allowed are 17 to "),
            ("[limits.process]\nsessions = 0\n", "FILE, line 2 (sessions = 0): allowed are 1 to "),
            (
                "[limits.proces]\n",
                "FILE, line 1 ([limits.proces]): unknown field `proces`, expected `process` or `user`",
            ),
            ("[peers\n", "FILE, line 1 ([peers): "),
        ] {
            let error = loaded(text, false).unwrap_err();
            assert!(error.starts_with(wanted), "{text}\n{error}\n{wanted}");
        }
    }

    #[test]
    fn settings_are_read_and_know_their_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("broker.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            load(&path, true, Policy::private()).map(|file| file.settings)
        };
        let settings = read("[sysctl]\nspin_us = 0\nrmem = \"256K\"\nactive = false\n").unwrap();
        let found: Vec<_> = settings.iter().map(|setting| (setting.knob.name(), setting.value)).collect();
        assert_eq!(found, [("active", 0), ("rmem", 256 << 10), ("spin_us", 0)]);
        assert_eq!(settings[0].origin, Origin::File(path.display().to_string()));
        for (text, wanted) in [
            (
                "[sysctl]\nspin_us = 10001\n",
                "line 2 (spin_us = 10001): value out of range; spin_us takes 0 to 10000",
            ),
            ("[sysctl]\nspeed = 1\n", "line 2 (speed = 1): no such setting"),
            (
                "[sysctl]\nautocorking_size = 0\n",
                "SMC has this setting, Shunpike has not; nothing is held back",
            ),
            ("[sysctl]\nspin_us = -1\n", "not a number; spin_us takes"),
            ("[sysctl]\nspin_us = [1]\n", "line 2 (spin_us = [1]): "),
            ("[sysctl]\nspin_us = true\n", "line 2 (spin_us = true): not a number; spin_us takes 0 to 10000"),
            ("[sysctl]\nrmem = 1.5\n", "expected a whole number, text as \"256K\", or true or false"),
            ("[sysctl]\nrmem = \"1M\"\n\"net.smc.rmem\" = \"2M\"\n", "rmem is set twice here"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}\n{error}\n{wanted}");
        }
    }

    #[test]
    fn metrics_are_served_where_the_file_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("broker.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            load(&path, false, Policy::private()).map(|file| file.metrics)
        };
        assert_eq!(read("").unwrap(), None);
        let address = read("[metrics]\nlisten = \"127.0.0.1:9477\"\n").unwrap();
        assert_eq!(address, Some(Address::Tcp(([127, 0, 0, 1], 9477).into())));
        let error = read("[metrics]\nlisten = \"9477\"\n").unwrap_err().to_string();
        assert!(error.contains("line 2 (listen = \"9477\"): write ADDRESS:PORT"), "{error}");
    }

    #[test]
    fn a_private_broker_has_no_say_over_users() {
        assert!(loaded("[limits.process]\ndmbs = 5\n", true).is_ok());
        for text in ["[peers]\nallow = \"any\"\n", "[socket]\nmode = \"0666\"\n", "[limits.user]\ndmbs = 5\n"]
        {
            let error = loaded(text, true).unwrap_err();
            assert!(
                error.contains("line 1") && error.contains("a private broker serves one user"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_that_others_may_write_is_no_policy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("broker.toml");
        std::fs::write(&path, "").unwrap();
        let try_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            load(&path, false, Policy::system_wide(1, 1))
        };
        assert!(try_mode(0o644).is_ok());
        for mode in [0o664, 0o646] {
            let error = try_mode(mode).unwrap_err().to_string();
            assert!(error.contains("only its owner can write to"), "{error}");
        }
        assert!(load(directory.path(), false, Policy::system_wide(1, 1)).is_err(), "a directory");
        assert!(load(&directory.path().join("none"), false, Policy::system_wide(1, 1)).is_err());
    }
}
