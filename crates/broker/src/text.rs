//! Text of other users' processes, as it is shown.

/// Whether a character gives a terminal or a reader's eye orders: it is a control character, or one of format (Unicode's Cf, and the two
/// separators of lines and paragraphs), of which some turn the direction of what follows.
pub fn is_order(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

/// A process's name as it is shown and told on.
pub fn plain_name(name: &[u8]) -> String {
    String::from_utf8_lossy(name).trim_end_matches('\0').replace(is_order, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U+202E had what followed read from right to left, in a terminal and in a browser.
    #[test]
    fn a_name_turns_no_line_around() {
        assert_eq!(plain_name("sl\u{202e}gpj\u{2066}\u{200b}\n\0\0".as_bytes()), "sl?gpj???");
        assert_eq!(plain_name("b\u{e4}ck\u{3042}".as_bytes()), "b\u{e4}ck\u{3042}");
        assert_eq!(plain_name(b"x\xff"), "x\u{fffd}");
    }
}
