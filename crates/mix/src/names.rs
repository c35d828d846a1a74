//! Suggestions for misspelt names.

/// Returns up to three names that resemble `name`, the most similar first.
pub(crate) fn similar<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let most = (name.chars().count() / 3).max(1);
    let distance = |other: &str| strsim::osa_distance(name, other);
    let begins = |other: &str| name.len() > 1 && (other.starts_with(name) || name.starts_with(other));
    let mut near: Vec<&str> =
        names.into_iter().filter(|other| distance(other) <= most || begins(other)).collect();
    near.sort_by_key(|other| distance(other));
    near.into_iter().take(3).map(str::to_string).collect()
}

/// Returns `did you mean a or b? `, or an empty text if there is no name to suggest.
pub(crate) fn did_you_mean(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!("did you mean {}? ", names.join(" or ")),
    }
}
