//! Reads from TOML the rules that decide which sockets the engine runs and which stay with the kernel.
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
use inlane_offload_protocol::rules::Rule;
use serde::Deserialize;

/// The size of the preloaded library's buffer for all rules, in bytes.
const MOST: usize = 16384;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    run_by: String,
    program: Option<String>,
    protocol: Option<String>,
    address: Option<String>,
    port: Option<Ports>,
    #[serde(rename = "use")]
    usage: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ports {
    One(u16),
    Range(String),
}

/// Converts rules from TOML to the lines that the preloaded library reads. `name` is the file's name, for
/// errors.
///
/// # Errors
/// [`Error::Setting`] names the first rule that is wrong.
pub fn read(name: &str, toml: &str) -> Result<String> {
    let wrong = |why: String| Error::Setting { what: format!("rules in {name}"), why };
    let file: File = toml::from_str(toml).map_err(|error| wrong(error.to_string().trim_end().to_owned()))?;
    let mut text = String::new();
    for (index, entry) in file.rule.iter().enumerate() {
        let mut line = entry.run_by.clone();
        if let Some(program) = &entry.program {
            if program.is_empty() || program.contains([' ', '\n', '/']) {
                return Err(wrong(format!(
                    "rule {}: program = {program:?} is not the last part of a program's path",
                    index + 1
                )));
            }
            line += &format!(" program={program}");
        }
        if let Some(protocol) = &entry.protocol {
            line += &format!(" protocol={protocol}");
        }
        if let Some(address) = &entry.address {
            line += &format!(" address={address}");
        }
        match &entry.port {
            Some(Ports::One(port)) => line += &format!(" port={port}"),
            Some(Ports::Range(range)) => line += &format!(" port={range}"),
            None => {}
        }
        if let Some(usage) = &entry.usage {
            line += &format!(" use={usage}");
        }
        let Some(rule) = Rule::parse(&line) else {
            let why = "write run_by = \"engine\" or \"kernel\", protocol = \"tcp\" or \"udp\", address = \"10.0.0.0/8\", port = \"80-90\", use = \"listen\" or \"connect\"";
            return Err(wrong(format!("rule {} ('{line}') is not valid; {why}", index + 1)));
        };
        text += &format!("{rule}\n");
    }
    match text.len() > MOST {
        true => Err(wrong(format!("{} bytes of rules are more than {MOST}; use fewer rules", text.len()))),
        false => Ok(text),
    }
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
            ("[[rule]]\nrun_by = \"maybe\"\n", "rule 1 ('maybe')"),
            ("[[rule]]\nrun_by = \"kernel\"\nprogram = \"/bin/x\"\n", "last part"),
            ("[[rule]]\nrun_by = \"kernel\"\naddress = \"10/8\"\n", "rule 1"),
            ("[[rule]]\nrun_by = \"kernel\"\nhost = \"x\"\n", "unknown field"),
            ("[[rule]]\n", "run_by"),
        ] {
            let error = read("rules.toml", toml).unwrap_err().to_string();
            assert!(error.contains("rules.toml") && error.contains(expected), "{error}");
        }
    }
}
