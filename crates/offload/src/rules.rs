//! Reads rules in TOML. They decide which sockets the engine runs and which sockets stay with the kernel.
//!
//! ```toml
//! [[rule]]
//! run_by = "kernel"          # or "engine"
//! program = "sshd"           # all conditions are optional
//! protocol = "udp"           # or "tcp"
//! address = "10.0.0.0/8"
//! port = "80-90"             # or a number
//! use = "listen"             # or "connect"
//! ```

use crate::error::{Error, Result};
use crate::toml_error::explain;
use inlane_offload_protocol::rules::Rule;
use toml::{Table, Value};

/// The size of the preloaded library's buffer for all rules, in bytes.
const MOST: usize = 16384;

/// The keys of a rule. The second text describes the key's values for error messages.
const KEYS: [(&str, &str); 6] = [
    ("run_by", "\"engine\" or \"kernel\""),
    ("program", "the last part of a program's path, such as \"sshd\""),
    ("protocol", "\"tcp\" or \"udp\""),
    ("address", "an address or a network, such as \"10.0.0.0/8\""),
    ("port", "a port or a range, such as 80 or \"80-90\""),
    ("use", "\"listen\" or \"connect\""),
];

/// Converts rules from TOML to the lines that the preloaded library reads. `name` is the file's name, for
/// errors.
///
/// # Errors
/// [`Error::Setting`] names the first wrong rule.
pub fn read(name: &str, toml: &str) -> Result<String> {
    let wrong = |why: String| Error::Setting { what: format!("rules in {name}").into(), why };
    let file: Table = toml.parse().map_err(|error| {
        let (line, why) = explain(&error, toml);
        Error::Setting { what: format!("rules in {name}:{line}").into(), why }
    })?;
    if let Some(key) = file.keys().find(|key| *key != "rule") {
        return Err(wrong(format!("the key '{key}' is unknown; begin each rule with the line [[rule]]")));
    }
    let rules = match file.get("rule") {
        None => &[],
        Some(Value::Array(rules)) => rules.as_slice(),
        Some(_) => {
            return Err(wrong(
                "'rule' must be a list of tables; begin each rule with the line [[rule]]".into(),
            ));
        }
    };
    let mut text = String::new();
    for (index, rule) in rules.iter().enumerate() {
        let line = line(rule).map_err(|why| wrong(format!("rule {}: {why}", index + 1)))?;
        text += &format!("{line}\n");
    }
    match text.len() > MOST {
        true => Err(wrong(format!("{} bytes of rules are more than {MOST}; use fewer rules", text.len()))),
        false => Ok(text),
    }
}

/// Converts one rule to the line that the preloaded library reads.
fn line(rule: &Value) -> Result<String, String> {
    let Value::Table(rule) = rule else {
        return Err("it has no keys; begin each rule with the line [[rule]]".into());
    };
    if let Some(key) = rule.keys().find(|key| KEYS.iter().all(|(known, _)| known != key)) {
        let keys = KEYS.map(|(key, _)| key).join(", ");
        return Err(format!("the key '{key}' is unknown; choose among {keys}"));
    }
    let mut line = String::new();
    for (key, accepted) in KEYS {
        let Some(value) = rule.get(key) else {
            match key {
                "run_by" => return Err(format!("run_by is missing; write run_by = {accepted}")),
                _ => continue,
            }
        };
        let word = match value {
            Value::String(word) => word.clone(),
            Value::Integer(port) if key == "port" => port.to_string(),
            _ => String::new(),
        };
        let condition = match key {
            "run_by" => word.clone(),
            _ => format!("{line} {key}={word}"),
        };
        let is_one_word = !word.is_empty() && !word.contains(char::is_whitespace);
        let names_a_path = key == "program" && word.contains('/');
        if !is_one_word || names_a_path || Rule::parse(&condition).is_none() {
            return Err(format!("{key} = {value}: give {accepted}"));
        }
        line = condition;
    }
    Rule::parse(&line).map(|rule| rule.to_string()).ok_or_else(|| format!("'{line}' is not a rule"))
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn rules_become_lines() {
        let toml = "[[rule]]\nrun_by = \"kernel\"\nprogram = \"sshd\"\n[[rule]]\nrun_by = \"engine\"\naddress = \"10.0.0.0/8\"\nport = \"80-90\"\nuse = \"listen\"\n[[rule]]\nrun_by = \"engine\"\nport = 443\n";
        let lines =
            "kernel program=sshd\nengine address=10.0.0.0/8 port=80-90 use=listen\nengine port=443-443\n";
        assert_eq!(read("x", toml).unwrap(), lines);
        assert_eq!(read("x", "").unwrap(), "");
    }

    #[test]
    fn errors_name_the_rule() {
        for (toml, expected) in [
            ("[[rule]]\nrun_by = \"maybe\"\n", "rule 1: run_by = \"maybe\": give \"engine\" or \"kernel\""),
            ("[[rule]]\nrun_by = \"kernel\"\nprogram = \"/bin/x\"\n", "last part"),
            ("[[rule]]\nrun_by = \"kernel\"\naddress = \"10/8\"\n", "rule 1: address = \"10/8\": give"),
            ("[[rule]]\nrun_by = \"kernel\"\naddress = \"::1 port=1\"\n", "rule 1: address"),
            ("[[rule]]\nrun_by = \"kernel\"\nport = 65536\n", "port = 65536: give a port or a range"),
            ("[[rule]]\nrun_by = \"kernel\"\nport = \"90-80\"\n", "port = \"90-80\": give a port or a range"),
            ("[[rule]]\nrun_by = \"kernel\"\nprotocol = true\n", "protocol = true: give \"tcp\""),
            ("[[rule]]\nrun_by = \"kernel\"\nhost = \"x\"\n", "the key 'host' is unknown; choose among"),
            ("[[rule]]\n", "rule 1: run_by is missing; write run_by ="),
            ("[rule]\nrun_by = \"kernel\"\n", "begin each rule with the line [[rule]]"),
            ("rule = [1]\n", "begin each rule with the line [[rule]]"),
            ("run_by = \"kernel\"\n", "the key 'run_by' is unknown; begin each rule with"),
            ("\nhello\n", "rules.toml:2: there is no value; write NAME = VALUE"),
        ] {
            let error = read("rules.toml", toml).unwrap_err().to_string();
            assert!(error.contains("rules.toml") && error.contains(expected), "{error}");
        }
    }
}
