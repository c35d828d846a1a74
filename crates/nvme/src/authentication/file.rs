//! The file of secrets: one line for each host.

use super::{Credentials, Secret};
use crate::field::SECRETS_FILE;
use crate::wire::nqn as names;
use crate::{Result, text_file};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// The contents of a secrets file. Targets and hosts use the same format. Each line has a host's NQN, the
/// host's secret and, optionally, the target's secret for this host. `#` starts a comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretsFile {
    /// The secrets, by the hosts' NQNs.
    pub hosts: BTreeMap<String, Arc<Credentials>>,
}

impl SecretsFile {
    /// Reads the secrets file at `path`. Only its owner may have access to it.
    ///
    /// # Errors
    /// If the file cannot be read, is not a regular file of UTF-8 text, other users can access it, or a line
    /// is invalid. Messages contain no secrets.
    pub fn read(path: &Path) -> Result<Self> {
        let text = text_file::read(SECRETS_FILE, path, |file| {
            let mode = file.metadata()?.permissions().mode();
            if mode & 0o077 == 0 {
                return Ok(Ok(()));
            }
            let (mode, path) = (mode & 0o777, path.display());
            Ok(Err(format!("other users may access it (mode {mode:o}); protect it: chmod 600 {path}")))
        })?;
        Self::parse(&text).map_err(|(line, why)| text_file::invalid_line(SECRETS_FILE, path, line, why))
    }

    /// Parses the contents of a secrets file.
    ///
    /// # Errors
    /// The number of the first invalid line, and why the line is invalid.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut hosts = BTreeMap::new();
        for (line, number) in text.lines().zip(1..) {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(nqn) = words.next() else { continue };
            let at = |why: String| (number, why);
            if nqn.starts_with("DHHC-1:") {
                return Err(at("it starts with a secret; write the host's NQN before it".into()));
            }
            names::check(nqn).map_err(|error| at(error.to_string()))?;
            let mut secret = |whose: &str| {
                let secret = words.next().map(str::parse::<Secret>).transpose();
                secret.map_err(|why| at(format!("the {whose}'s secret: {why}")))
            };
            let host = secret("host")?;
            let host = host.ok_or_else(|| at("the host's secret is missing after its NQN".into()))?;
            let target = secret("target")?;
            if words.next().is_some() {
                return Err(at("it has more than an NQN and two secrets".into()));
            }
            if target.as_ref() == Some(&host) {
                return Err(at("both secrets are the same; give the target a secret of its own".into()));
            }
            if hosts.insert(nqn.to_string(), Arc::new(Credentials { host, target })).is_some() {
                return Err(at(format!("{nqn} has a line before; keep one of them")));
            }
        }
        Ok(Self { hosts })
    }
}
