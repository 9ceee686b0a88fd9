//! `explain PID[:FD]`.

use super::table::print;
use crate::error::Error;
use shunpike_broker::report::{Connection, Explanation, Explanations, ReasonText};

/// Each connection in a paragraph of its own.
pub fn show(answer: Explanations) -> Result<(), Error> {
    let paragraphs: Vec<String> = answer.explanations.iter().map(paragraph).collect();
    print(&paragraphs.join("\n\n"))
}

fn paragraph(explanation: &Explanation) -> String {
    let Connection { pid, fd, comm, local, remote, mode, .. } = &explanation.connection;
    let mut lines = vec![format!("{comm} {pid}:{fd}  {local} -> {remote}  {mode}")];
    for sentence in [&explanation.how, &explanation.why, &explanation.advice] {
        if !sentence.is_empty() {
            lines.push(format!("  {sentence}"));
        }
    }
    let reasons =
        [("this end", &explanation.connection.reason), ("the peer", &explanation.connection.peer_reason)];
    for (whose, reason) in reasons {
        if let Some(ReasonText { code, key, text }) = reason {
            lines.push(format!("  {whose}: 0x{code:08x} {key}: {text}"));
        }
    }
    lines.join("\n")
}
