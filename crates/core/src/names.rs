//! Suggestions for misspelt names.

/// Returns up to three names that the user may have meant by `name`, the most similar first. A name is
/// similar if one letter differs, or at most a third of the letters. It is also similar if one name begins
/// with the other.
pub fn similar<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let distance = |other: &str| strsim::osa_distance(name, other);
    let begins = |other: &str| name.len() > 1 && (other.starts_with(name) || name.starts_with(other));
    let is_near = |other: &&str| {
        let most = name.chars().count().max(other.chars().count()) / 3;
        distance(other) <= most.max(1) || begins(other)
    };
    let mut near: Vec<&str> = names.into_iter().filter(is_near).collect();
    near.sort_by_key(|other| distance(other));
    near.dedup();
    // Leave out names that are much less similar than the first.
    let most = near.first().map_or(0, |first| distance(first) + 1);
    near.retain(|other| distance(other) <= most || begins(other));
    near.into_iter().take(3).map(str::to_string).collect()
}

/// Returns `did you mean a or b? `, or an empty string if there is no name to suggest.
pub fn did_you_mean(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!("did you mean {}? ", names.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested_in_order() {
        assert_eq!(similar("brust", ["burst", "slots", "rate"]), ["burst"]);
        assert!(similar("xyz", ["burst", "slots"]).is_empty());
        assert!(similar("all", ["none", "header", "data", "both"]).is_empty());
        assert_eq!(similar("packet", ["packets", "paths"]), ["packets"]);
        let variables = ["INLANE_FORWARD_PAUSE", "INLANE_FORWARD_BURST"];
        assert_eq!(similar("INLANE_FORWARD_BRUST", variables), ["INLANE_FORWARD_BURST"]);
        assert_eq!(did_you_mean(&["a".into(), "b".into()]), "did you mean a or b? ");
    }
}
