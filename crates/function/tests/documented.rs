//! The page about packet functions names every function that the headers offer.

use inlane_function::HEADERS;

/// Returns the names of functions in a header that users may call: those that begin with INLANE, outside `detail`.
fn offered(header: &str) -> Vec<&str> {
    let mut inside_detail = false;
    let mut names = Vec::new();
    for line in header.lines() {
        inside_detail |= line.starts_with("namespace detail {");
        inside_detail &= !line.starts_with("} // namespace detail");
        let Some((_, declared)) = line.split_once("INLANE ") else { continue };
        let is_declaration =
            !inside_detail && !line.trim_start().starts_with("//") && !declared.contains("explicit");
        let Some((before, _)) = declared.split_once('(').filter(|_| is_declaration) else { continue };
        let name = before.rsplit([' ', '*', '&']).next().unwrap_or_default();
        let first = name.chars().next().unwrap_or('_');
        if first.is_ascii_lowercase() && name != "self" && !before.contains("operator") {
            names.push(name);
        }
    }
    names
}

#[test]
fn every_accessor_is_on_the_page() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/functions.md"))
        .expect("the page is in the repository");
    let users = ["inlane_block.h", "inlane_packet.h", "inlane_layers.h"];
    let headers = HEADERS.iter().filter(|(name, _)| users.contains(name));
    let names: Vec<&str> = headers.flat_map(|(_, text)| offered(text)).collect();
    for known in ["add", "insert", "be16", "layers_of", "warp_sum", "set"] {
        assert!(names.contains(&known), "{known} is offered: {names:?}");
    }
    let missing: Vec<&&str> = names
        .iter()
        .filter(|name| **name != "packet" && **name != "burst")
        .filter(|name| !page.contains(&format!("{name}(")) && !page.contains(&format!("{name}<")))
        .collect();
    assert!(missing.is_empty(), "docs/functions.md does not name {missing:?}");
}
