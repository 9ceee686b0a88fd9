//! `explain PID[:FD]`.

use super::connections::other_version;
use super::presence::Presence;
use super::table::print;
use crate::error::Error;
use crate::kernel;
use shunpike_broker::QueryError;
use shunpike_broker::report::{Explanation, Explanations, Failure};

/// What to say where the broker has no connection of a process: if Shunpike is not in it, that. Whatever else the broker said stands.
pub fn without_answer(pid: u32, error: Error) -> Error {
    let is_of_none = match &error {
        Error::Query(QueryError::Refused(failure)) => failure.what == "no watched connection",
        Error::Refused(_) => true,
        _ => false,
    };
    if is_of_none { unreached(pid).unwrap_or(error) } else { error }
}

/// Why nothing is known of a process in which Shunpike is not; nothing where it is, or may be.
fn unreached(pid: u32) -> Option<Error> {
    let name = kernel::name(pid);
    // Of a process that is not there, the broker has said so.
    if name.is_empty() {
        return None;
    }
    let Presence { is_so, text, advice } = Presence::in_all(&[(pid, name)]);
    let failure = Failure {
        what: "no watched connection".into(),
        on: format!("PID {pid}"),
        hint: format!("{text}; {advice}"),
    };
    (is_so == Some(false)).then_some(Error::Refused(failure))
}

/// Each connection in a paragraph of its own.
pub fn show(answer: Explanations) -> Result<(), Error> {
    let others = answer.other_versions.iter().map(|other| {
        let advice = "restart the program, or the broker: whichever runs the older version";
        format!("{}\n  why: {}\n  what to do: {advice}", other_version(other), other.reason.text)
    });
    let paragraphs: Vec<String> = answer.explanations.iter().map(paragraph).chain(others).collect();
    print(&paragraphs.join("\n\n"))
}

fn paragraph(explanation: &Explanation) -> String {
    let Explanation { connection, how, why, advice } = explanation;
    let mut lines = vec![format!("{}:{}  {}", connection.pid, connection.fd, connection.mode)];
    let entry = match connection.entry.as_deref() {
        Some("syscall") => "its system calls are patched (entry syscall)",
        Some(_) => "libshunpike.so is loaded in it (entry libc)",
        None => "",
    };
    for (name, sentence) in [("how", how.as_str()), ("by", entry), ("why", why), ("what to do", advice)] {
        if !sentence.is_empty() {
            lines.push(format!("  {name}: {sentence}"));
        }
    }
    lines.join("\n")
}
