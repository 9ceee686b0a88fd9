//! `explain PID[:FD]`.

use super::table::print;
use crate::error::Error;
use shunpike_broker::report::{Explanation, Explanations};

/// Each connection in a paragraph of its own.
pub fn show(answer: Explanations) -> Result<(), Error> {
    let paragraphs: Vec<String> = answer.explanations.iter().map(paragraph).collect();
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
