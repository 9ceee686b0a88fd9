//! Settings: names, ranges, and where each value comes from.
//!
//! Names are SMC's (net.smc.*) where the kernel has the setting, too. What it has and we do not is known by name, so
//! that whoever asks learns why.

use crate::report::{Failure, Sysctl};
use shunpike_shm::lane::{MAX_CLASS, ring_size};
use shunpike_shm::pages::CQS;

/// One setting.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Knob {
    /// Bytes that a sender may have under way on a lane.
    Wmem,
    /// Ring size of new DMBs.
    Rmem,
    /// Connections of a link group.
    MaxConnsPerLgr,
    /// No new handshakes while there are many.
    LimitSmcHs,
    /// Calls before a nomination.
    NominateCalls,
    /// Bytes before a nomination.
    NominateBytes,
    /// Which waits spin.
    Profile,
    /// Longest spin.
    SpinUs,
    /// How long a full ring is borne.
    GraceMs,
    /// The device's: whether there are new lanes.
    Active,
    /// The device's: copy through a send buffer.
    DmbCopy,
    /// Completion queues of a process.
    MaxCqs,
    /// Buffers of MSG_ZEROCOPY that are lent.
    LendBytes,
}

/// What is written for people and checked for all.
struct Form {
    name: &'static str,
    min: u64,
    max: u64,
    default: u64,
    text: &'static str,
}

const LEAST_RING: u64 = ring_size(0) as u64;
const LARGEST_RING: u64 = ring_size(MAX_CLASS) as u64;

/// Before a name, as sysctl(8) has it.
const PREFIX: &str = "net.smc.";

/// SMC's settings that there are none of here, and why.
const ABSENT: [(&str, &str); 4] = [
    (
        "autocorking_size",
        "nothing is held back on a lane by itself: only TCP_CORK and MSG_MORE do so, as the program asks (the kernel \
         never autocorks SMC-D either, as nothing waits in a device's queue)",
    ),
    (
        "smcr_buf_type",
        "it is SMC-R's; DMBs are virtual memory of processes ('shunpike device' shows dmb_type)",
    ),
    (
        "smcr_testlink_time",
        "it is SMC-R's; the end of a process is seen by the kernel, without test messages",
    ),
    ("smcr_max_links_per_lgr", "it is SMC-R's; the two processes of a link group share one page of memory"),
];

/// What `profile` takes, by its values.
pub use shunpike_shm::pages::profile::NAMES as PROFILES;

impl Knob {
    /// All of them, SMC's first.
    pub const ALL: [Knob; 13] = [
        Knob::Wmem,
        Knob::Rmem,
        Knob::MaxConnsPerLgr,
        Knob::LimitSmcHs,
        Knob::NominateCalls,
        Knob::NominateBytes,
        Knob::Profile,
        Knob::SpinUs,
        Knob::GraceMs,
        Knob::Active,
        Knob::DmbCopy,
        Knob::MaxCqs,
        Knob::LendBytes,
    ];

    fn form(self) -> Form {
        let form = |name, min, max, default, text| Form { name, min, max, default, text };
        match self {
            Knob::Wmem => form(
                "wmem",
                LEAST_RING,
                LARGEST_RING,
                LARGEST_RING,
                "most bytes that a sender has under way on a lane; also at most the peer's rmem",
            ),
            Knob::Rmem => form(
                "rmem",
                LEAST_RING,
                LARGEST_RING,
                8 << 20,
                "ring size of new DMBs, bytes, rounded up to 16 KiB << n",
            ),
            Knob::MaxConnsPerLgr => {
                form("max_conns_per_lgr", 16, 255, 255, "connections of a link group; the next opens another")
            }
            Knob::LimitSmcHs => form(
                "limit_smc_hs",
                0,
                1,
                0,
                "1: no new handshakes while many are under way; they are asked for later",
            ),
            Knob::NominateCalls => form(
                "nominate_calls",
                0,
                65_535,
                8,
                "nominate after this many calls that moved data in the less busy direction",
            ),
            Knob::NominateBytes => form(
                "nominate_bytes",
                0,
                1 << 30,
                65536,
                "nominate after this many bytes in either direction",
            ),
            Knob::Profile => form(
                "profile",
                0,
                PROFILES.len() as u64 - 1,
                0,
                "which waits spin: 0 balanced, those that pay; 1 latency, all; 2 efficiency, none",
            ),
            Knob::SpinUs => {
                form("spin_us", 0, 10_000, 30, "longest spin before a sleep, microseconds; 0: none")
            }
            Knob::GraceMs => form(
                "grace_ms",
                0,
                60_000,
                100,
                "how long a writer waits on a full ring whose reader does not move, milliseconds",
            ),
            Knob::Active => form("active", 0, 1, 1, "0: no new lanes, and open ones go back to TCP"),
            Knob::DmbCopy => form(
                "dmb_copy",
                0,
                1,
                0,
                "1: new lanes are written through a send buffer, as hardware ISM is",
            ),
            Knob::MaxCqs => form(
                "max_cqs",
                1,
                CQS as u64,
                CQS as u64,
                "completion queues that the epoll sets and threads of a process are spread over; 1: all share one",
            ),
            Knob::LendBytes => form(
                "lend_bytes",
                0,
                1 << 30,
                0,
                "MSG_ZEROCOPY: buffers from this size on are lent, at any cost; 0: where it is measured to be no slower",
            ),
        }
    }

    /// Whether it is a matter of one program, which can have a value of its own: all else two programs share, or the broker looks at.
    pub fn is_of_a_program(self) -> bool {
        match self {
            Knob::Rmem | Knob::MaxConnsPerLgr | Knob::LimitSmcHs | Knob::Active | Knob::DmbCopy => false,
            Knob::Wmem
            | Knob::NominateCalls
            | Knob::NominateBytes
            | Knob::Profile
            | Knob::SpinUs
            | Knob::GraceMs
            | Knob::MaxCqs
            | Knob::LendBytes => true,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.form().name
    }

    /// The environment variable that sets it for a broker.
    pub fn variable(self) -> String {
        format!("SHUNPIKE_{}", self.name().to_uppercase())
    }

    /// The setting of this name, with or without `net.smc.`. Errors: there is none, and why.
    pub fn of(name: &str) -> Result<Self, Failure> {
        let bare = name.trim();
        let bare = bare.strip_prefix(PREFIX).unwrap_or(bare);
        // As the kernel calls it, for both kinds of SMC.
        let bare = if bare == "smcr_max_conns_per_lgr" { "max_conns_per_lgr" } else { bare };
        if let Some(knob) = Self::ALL.into_iter().find(|knob| knob.name() == bare) {
            return Ok(knob);
        }
        Err(match ABSENT.iter().find(|(absent, _)| *absent == bare) {
            Some((absent, why)) => failure("SMC has this setting, Shunpike has not", absent, why),
            None => failure("no such setting", name, "'shunpike sysctl' lists names and ranges"),
        })
    }

    /// The value that `text` says: a number, with K or M for KiB and MiB, or on and off for a switch.
    /// Errors: what is allowed.
    pub fn value(self, text: &str) -> Result<u64, Failure> {
        let Form { name, min, max, .. } = self.form();
        let text = text.trim();
        let value = match text {
            "on" if max == 1 => Some(1),
            "off" if max == 1 => Some(0),
            _ if self == Knob::Profile => {
                let named = PROFILES.iter().position(|profile| *profile == text);
                named.map(|value| value as u64).or_else(|| number(text))
            }
            _ => number(text),
        };
        let on = format!("{name}={text}");
        let range = if max == 1 {
            format!("{name} takes 0 or 1 (off, on)")
        } else if self == Knob::Profile {
            format!("{name} takes {}", PROFILES.join(", "))
        } else {
            format!("{name} takes {min} to {max}")
        };
        match value {
            Some(value) if (min..=max).contains(&value) => Ok(self.rounded(value)),
            Some(_) => Err(failure("value out of range", &on, &range)),
            None => Err(failure("not a number", &on, &range)),
        }
    }

    /// What a value comes to: rings are of certain sizes only.
    fn rounded(self, value: u64) -> u64 {
        match self {
            Knob::Rmem | Knob::Wmem => value.next_power_of_two(),
            _ => value,
        }
    }
}

/// Where a value comes from; each has precedence over those before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Built in.
    Default,
    /// A file.
    File(String),
    /// An environment variable.
    Environment(String),
    /// `shunpike broker --set`.
    CommandLine,
    /// Set while the broker ran, by this user.
    RunTime(u32),
}

impl Origin {
    fn kind(&self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::File(_) => "file",
            Origin::Environment(_) => "environment",
            Origin::CommandLine => "command line",
            Origin::RunTime(_) => "run time",
        }
    }

    /// Which file, variable or user.
    pub fn detail(&self) -> String {
        match self {
            Origin::Default | Origin::CommandLine => String::new(),
            Origin::File(name) | Origin::Environment(name) => name.clone(),
            Origin::RunTime(uid) => format!("uid {uid}"),
        }
    }
}

/// A value for a setting, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Which.
    pub knob: Knob,
    /// Its value.
    pub value: u64,
    /// Who says so.
    pub origin: Origin,
}

impl Setting {
    /// The one that holds where nobody says anything.
    pub fn built_in(knob: Knob) -> Self {
        Self { knob, value: knob.form().default, origin: Origin::Default }
    }

    /// From `NAME=VALUE`. Errors: what is wrong with it, and what is allowed.
    pub fn parse(text: &str, origin: Origin) -> Result<Self, Failure> {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| failure("not a setting", text, "write NAME=VALUE, as rmem=262144"))?;
        let knob = Knob::of(name)?;
        Ok(Self { knob, value: knob.value(value)?, origin })
    }
}

/// The values of all settings.
pub struct Settings([(u64, Origin); Knob::ALL.len()]);

impl Default for Settings {
    fn default() -> Self {
        Self(Knob::ALL.map(|knob| (knob.form().default, Origin::Default)))
    }
}

impl Settings {
    /// The value of one.
    pub fn get(&self, knob: Knob) -> u64 {
        self.0[knob as usize].0
    }

    /// Where the value of one comes from.
    pub fn origin(&self, knob: Knob) -> &Origin {
        &self.0[knob as usize].1
    }

    /// Notes a value; making it so is the caller's.
    pub fn note(&mut self, setting: &Setting) {
        self.0[setting.knob as usize] = (setting.value, setting.origin.clone());
    }

    /// One of them, for the tools.
    pub fn report(&self, knob: Knob) -> Sysctl {
        let Form { name, min, max, default, text } = knob.form();
        let (value, origin) = &self.0[knob as usize];
        Sysctl {
            name: name.to_owned(),
            value: *value,
            default,
            min,
            max,
            source: origin.kind().to_owned(),
            from: origin.detail(),
            text: text.to_owned(),
        }
    }
}

fn number(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], 1 << 10),
        (at, 'm' | 'M') => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    // parse() takes a sign, too.
    let digits = digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(digits)?;
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn failure(what: &str, on: &str, hint: &str) -> Failure {
    Failure { what: what.to_owned(), on: on.to_owned(), hint: hint.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_is_found_by_its_name_and_begins_within_its_range() {
        let settings = Settings::default();
        for (index, knob) in Knob::ALL.into_iter().enumerate() {
            assert_eq!(knob as usize, index, "{knob:?} is where it is looked for");
            assert_eq!(Knob::of(knob.name()), Ok(knob));
            assert_eq!(Knob::of(&format!("net.smc.{}", knob.name())), Ok(knob));
            let default = settings.get(knob);
            assert_eq!(knob.value(&default.to_string()), Ok(default), "{knob:?}");
            let report = settings.report(knob);
            assert_eq!((report.source.as_str(), report.value), ("default", report.default));
        }
        assert_eq!(Knob::of("net.smc.smcr_max_conns_per_lgr"), Ok(Knob::MaxConnsPerLgr));
        assert_eq!(Knob::SpinUs.variable(), "SHUNPIKE_SPIN_US");
    }

    #[test]
    fn what_smc_has_and_we_have_not_is_answered_with_the_reason() {
        for (name, why) in ABSENT {
            let failure = Knob::of(&format!("net.smc.{name}")).unwrap_err();
            assert!(failure.what.contains("SMC has") && failure.hint == why, "{failure}");
        }
        let failure = Knob::of("speed").unwrap_err();
        assert!(failure.what == "no such setting" && failure.on == "speed", "{failure}");
    }

    #[test]
    fn values_have_units_and_ranges() {
        for (knob, text, value) in [
            (Knob::Rmem, "16384", 16384),
            (Knob::Rmem, " 100K ", 128 << 10),
            (Knob::Wmem, "8M", 8 << 20),
            (Knob::Active, "off", 0),
            (Knob::DmbCopy, "on", 1),
            (Knob::MaxConnsPerLgr, "255", 255),
            (Knob::Profile, "latency", 1),
            (Knob::Profile, "2", 2),
        ] {
            assert_eq!(knob.value(text), Ok(value), "{knob:?} {text}");
        }
        for (knob, text, range) in [
            (Knob::Rmem, "16383", "16384 to 16777216"),
            (Knob::MaxConnsPerLgr, "256", "16 to 255"),
            (Knob::MaxConnsPerLgr, "15", "16 to 255"),
            (Knob::LimitSmcHs, "2", "0 or 1"),
            (Knob::Profile, "3", "balanced, latency, efficiency"),
            (Knob::Profile, "fast", "balanced, latency, efficiency"),
            (Knob::SpinUs, "on", "0 to 10000"),
            (Knob::SpinUs, "-1", "0 to 10000"),
            (Knob::SpinUs, "+1", "0 to 10000"),
            (Knob::SpinUs, "", "0 to 10000"),
            (Knob::NominateBytes, "99999999999999999999M", "0 to"),
            (Knob::NominateBytes, "18446744073709551615K", "0 to"),
        ] {
            let failure = knob.value(text).unwrap_err();
            assert!(failure.hint.contains(range), "{knob:?} {text}: {failure}");
            assert!(failure.on.starts_with(knob.name()), "{failure}");
        }
    }

    #[test]
    fn the_last_word_is_remembered_with_who_said_it() {
        let mut settings = Settings::default();
        for (origin, source, from) in [
            (Origin::File("/etc/shunpike/broker.toml".into()), "file", "/etc/shunpike/broker.toml"),
            (Origin::Environment("SHUNPIKE_SPIN_US".into()), "environment", "SHUNPIKE_SPIN_US"),
            (Origin::CommandLine, "command line", ""),
            (Origin::RunTime(7), "run time", "uid 7"),
        ] {
            settings.note(&Setting::parse("spin_us=5", origin).unwrap());
            let report = settings.report(Knob::SpinUs);
            assert_eq!((report.value, report.default), (5, 30));
            assert_eq!((report.source.as_str(), report.from.as_str()), (source, from));
        }
        assert!(Setting::parse("spin_us", Origin::CommandLine).unwrap_err().hint.contains("NAME=VALUE"));
    }
}
