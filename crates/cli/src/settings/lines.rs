//! Finds the lines of a settings file, so that messages can name them.

/// Returns the number of the line that sets `key` in the table `table` of a TOML file. The line is `key = value`
/// below the line `[table]`, or `[table.key]`. Returns `None` if there is no such line.
pub fn line_of(text: &str, table: &str, key: &str) -> Option<usize> {
    let dot = if table.is_empty() { "" } else { "." };
    let subtable = format!("{table}{dot}{key}");
    let mut current = "";
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.starts_with('[') {
            current = line.trim_start_matches('[').split(']').next().unwrap_or_default().trim();
            if current == subtable {
                return Some(number);
            }
        } else if current == table {
            let name = line.split(['=', '.']).next().unwrap_or_default();
            if name.trim().trim_matches(['"', '\'']) == key {
                return Some(number);
            }
        }
    }
    None
}

/// Returns `PATH:LINE`, or the path alone if the line is unknown.
pub fn place(path: &str, line: Option<usize>) -> String {
    line.map_or_else(|| path.to_owned(), |line| format!("{path}:{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_key_is_found_in_its_table() {
        let text = "top = 1\n\n[copy]\nsizes = 1\n[ ntb.bench ]\n# sizes = 2\n\"sizes\" = 3\n";
        assert_eq!(line_of(text, "", "top"), Some(1));
        assert_eq!(line_of(text, "copy", "sizes"), Some(4));
        assert_eq!(line_of(text, "ntb.bench", "sizes"), Some(7));
        assert_eq!(line_of(text, "copy", "top"), None);
        assert_eq!(line_of(text, "ntb", "bench"), Some(5));
        assert_eq!(line_of("[a]\n[[b]]\nc.d = 1", "", "b"), Some(2));
        assert_eq!(line_of("[a]\n[[b]]\nc.d = 1", "b", "c"), Some(3));
        assert_eq!((place("a", Some(7)), place("a", None)), ("a:7".into(), "a".into()));
    }
}
