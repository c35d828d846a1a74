//! Removes secrets from port specifications that are shown or stored.

use std::borrow::Cow;

/// The option whose value only the two processes of a connection may see.
pub(crate) const SECRET: &str = "secret";

/// Returns a port specification with `***` in place of its secret. Use it wherever a specification is shown or
/// stored: in messages, results and the state of an engine.
pub fn without_secret(text: &str) -> Cow<'_, str> {
    let is_secret = |part: &&str| part.strip_prefix(SECRET).is_some_and(|rest| rest.starts_with('='));
    if !text.split(',').any(|part| is_secret(&part)) {
        return text.into();
    }
    let shown = |part| if is_secret(&part) { format!("{SECRET}=***") } else { part.to_string() };
    text.split(',').map(shown).collect::<Vec<_>>().join(",").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_value_of_a_secret_is_replaced() {
        assert_eq!(without_secret("gen:64,flows=8"), "gen:64,flows=8");
        assert_eq!(without_secret("memif:/a,secret=b:c;d,id=1"), "memif:/a,secret=***,id=1");
        assert_eq!(without_secret("memif:/a,secrets=b,secret"), "memif:/a,secrets=b,secret");
    }
}
