//! What a query is answered with: a report as JSON, or what failed, on what, and what to do.

use crate::report::{Done, Failure};
use serde::Serialize;

/// The text of a report, or why there is none.
pub(crate) type Reply = Result<String, Failure>;

/// What failed, on what, and a hint.
pub(crate) fn failure(what: &str, on: &str, hint: &str) -> Failure {
    Failure { what: what.to_owned(), on: on.to_owned(), hint: hint.to_owned() }
}

/// The report of a change: what was done.
pub(crate) fn done(text: &str) -> String {
    json(&Done { done: text.to_owned() })
}

/// The text of a report.
pub(crate) fn json(report: &impl Serialize) -> String {
    serde_json::to_string(report).expect("reports are structs of text and numbers")
}
