//! `explain PID[:FD]`.

use super::connections::other_version;
use super::table::print;
use crate::error::Error;
use shunpike_broker::report::{Explanation, Explanations};

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
    for (name, sentence) in [("how", how), ("why", why), ("what to do", advice)] {
        if !sentence.is_empty() {
            lines.push(format!("  {name}: {sentence}"));
        }
    }
    lines.join("\n")
}
