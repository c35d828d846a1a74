//! The file of secrets: one line for each host.

use super::{Credentials, Secret};
use crate::target::subsystem::check_nqn;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The largest accepted file of secrets, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The contents of a file of secrets. Targets and hosts use the same format: each line has a host's NQN, the
/// host's secret and, optionally, the target's secret for this host. `#` starts a comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretsFile {
    /// The secrets, by the hosts' NQNs.
    pub hosts: BTreeMap<String, Arc<Credentials>>,
}

impl SecretsFile {
    /// Reads a file that only its owner can access.
    ///
    /// # Errors
    /// If the file cannot be read, other users can access it, or a line is invalid. Messages contain no
    /// secrets.
    pub fn read(path: &Path) -> Result<Self> {
        let name = format!("--secrets-file {}", path.display());
        let invalid = |why: String| Error::Invalid { what: name.clone(), why };
        let os = |source| {
            let what = format!("{name}: it cannot be read");
            Error::with_remedy(what, source, "name a text file that you may read")
        };
        let mut file = std::fs::File::open(path).map_err(os)?;
        let metadata = file.metadata().map_err(os)?;
        if metadata.is_dir() {
            return Err(invalid("it is a directory; name a file in it".into()));
        }
        let mode = metadata.permissions().mode();
        if mode & 0o077 != 0 {
            let why = format!(
                "other users may access it (mode {:o}); protect it: chmod 600 {}",
                mode & 0o777,
                path.display()
            );
            return Err(invalid(why));
        }
        let mut text = Zeroizing::new(String::new());
        let limited = Read::by_ref(&mut file).take(MAX_BYTES + 1).read_to_string(&mut text);
        match limited {
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Err(invalid("it is no text".into()))
            }
            Err(error) => Err(os(error)),
            Ok(bytes) if bytes as u64 > MAX_BYTES => {
                Err(invalid(format!("it is larger than {} MiB", MAX_BYTES >> 20)))
            }
            Ok(_) => Self::parse(&text)
                .map_err(|(line, why)| Error::Invalid { what: format!("{name}, line {line}"), why }),
        }
    }

    /// Parses the contents of a file.
    ///
    /// # Errors
    /// The number of the first invalid line, and why it is invalid.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut hosts = BTreeMap::new();
        for (line, number) in text.lines().zip(1..) {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(nqn) = words.next() else { continue };
            let at = |why: String| (number, why);
            if nqn.starts_with("DHHC-1:") {
                return Err(at("it starts with a secret; write the host's NQN before it".into()));
            }
            check_nqn(nqn).map_err(|error| at(error.to_string()))?;
            let mut secret = |whose: &str| match words.next().map(str::parse::<Secret>) {
                Some(Err(Error::Invalid { why, .. })) => Err(at(format!("the {whose}'s secret: {why}"))),
                Some(Err(error)) => Err(at(error.to_string())),
                Some(Ok(secret)) => Ok(Some(secret)),
                None => Ok(None),
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
