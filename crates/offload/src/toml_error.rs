//! Explains why a text is not TOML, in one line. The parser's own message repeats the faulty line of the file,
//! which may be long, and some of its words describe the grammar and not the mistake.

/// The beginnings of the parser's messages, each with an explanation that says what to write instead.
const EXPLAINED: [(&str, &str); 15] = [
    ("unclosed table", "the name of a table has no closing bracket; write for example [name]"),
    ("string values must be quoted", QUOTES),
    ("invalid float", QUOTES),
    ("invalid boolean", QUOTES),
    ("invalid basic string", "the text has no closing quote; add it"),
    ("invalid literal string", "the text has no closing quote; add it"),
    ("key with no value", "there is no value; write NAME = VALUE"),
    ("invalid key-value pair", "the line is neither a setting nor a table; write NAME = VALUE or [name]"),
    ("missing escaped value", "a backslash in a text begins an escape sequence; write it twice"),
    ("extra `=`", "there are two equals signs; write NAME = VALUE"),
    ("unclosed array", "the list has no closing bracket; add it"),
    ("unquoted keys cannot be empty", "there is no name; write NAME = VALUE or [name]"),
    ("unexpected key or value", "there is something behind the value or the table's name; begin a new line"),
    ("unexpected leading zero", "the number begins with 0; leave the 0 out"),
    ("invalid type: integer", "the number is too large; give a smaller one"),
];

const QUOTES: &str = "the value is neither a number nor a text in quotes; write texts as NAME = \"TEXT\"";

/// Returns the number of the faulty line of `text`, and why the line is not TOML.
pub fn explain(error: &toml::de::Error, text: &str) -> (usize, String) {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let why = match error.span().and_then(|span| text.get(span)) {
        Some(key) if error.message() == "duplicate key" && key.len() < 80 => {
            format!("'{key}' is set twice; set it once")
        }
        _ => {
            let explained = EXPLAINED.iter().find(|(message, _)| error.message().starts_with(message));
            explained.map_or_else(|| error.message().replace('\n', ", "), |(_, why)| why.to_string())
        }
    };
    (line, why)
}

#[cfg(test)]
mod tests {
    use super::explain;

    #[test]
    fn each_mistake_is_explained_with_its_line() {
        for (text, expected) in [
            ("[x", "has no closing bracket"),
            ("a = 1\na = 2", "'a' is set twice"),
            ("[a]\n[a]", "'a' is set twice"),
            ("a = 4K", "texts as NAME = \"TEXT\""),
            ("a = null", "texts as NAME = \"TEXT\""),
            ("a = word", "texts as NAME = \"TEXT\""),
            ("a = tru", "texts as NAME = \"TEXT\""),
            ("a = \"x", "no closing quote"),
            ("a = 'x", "no closing quote"),
            ("a", "write NAME = VALUE"),
            ("a: 3", "write NAME = VALUE"),
            ("a == 3", "two equals signs"),
            ("a = [1,", "the list has no closing bracket"),
            ("{\"a\": 3}", "the line is neither"),
            ("a = \"\\q\"", "write it twice"),
            (" = 3", "there is no name"),
            ("[]", "there is no name"),
            ("[a] b = 3", "begin a new line"),
            ("a = 032", "leave the 0 out"),
            ("a = 99999999999999999999", "too large"),
        ] {
            let text = format!("# first line\n{text}");
            let error = toml::from_str::<toml::Table>(&text).unwrap_err();
            let (line, why) = explain(&error, &text);
            assert!(line >= 2 && why.contains(expected), "{text}: {line}: {why}");
            assert!(!why.contains('\n') && why.contains("; "), "{text}: {why}");
        }
    }
}
