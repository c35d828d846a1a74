//! The hosts that may connect.

use crate::authentication::{Group, Hash, SecretsFile};
use crate::field::{HOSTS_FILE, SECRETS_FILE};
use crate::target::subsystem::{AllowedHosts, Authentication};
use crate::wire::nqn as names;
use crate::{Result, text_file};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Which hosts may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Every host.
    Any,
    /// Only the hosts with these NQNs may connect.
    Listed(BTreeSet<String>),
    /// Only hosts whose NQNs are lines of this file, or are in this set, may connect. The file is read again
    /// when it changes.
    File(PathBuf, BTreeSet<String>),
    /// The hosts listed in a [`SecretsFile`]. They must authenticate themselves. The file is read again when
    /// it changes.
    Secrets {
        /// The file.
        file: PathBuf,
        /// The hash function of the authentication.
        hash: Hash,
        /// The Diffie-Hellman group of the authentication.
        group: Group,
    },
}

impl Hosts {
    /// Returns the hosts that may connect, or `None` if every host may.
    pub(super) fn read(&self) -> Result<Option<AllowedHosts>> {
        let unauthenticated = |hosts: BTreeSet<String>| hosts.into_iter().map(|nqn| (nqn, None)).collect();
        match self {
            Hosts::Any => Ok(None),
            Hosts::Listed(hosts) => Ok(Some(unauthenticated(hosts.clone()))),
            Hosts::Secrets { file, hash, group } => {
                let secrets = SecretsFile::read(file)?;
                let authentication = |credentials| Authentication { credentials, hash: *hash, group: *group };
                let hosts = secrets.hosts.into_iter();
                Ok(Some(hosts.map(|(nqn, secrets)| (nqn, Some(authentication(secrets)))).collect()))
            }
            Hosts::File(path, others) => {
                let text = text_file::read(HOSTS_FILE, path, |_| Ok(Ok(())))?;
                let mut named = others.clone();
                for (line, number) in text.lines().zip(1..) {
                    let nqn = line.split('#').next().unwrap_or_default().trim();
                    if nqn.is_empty() {
                        continue;
                    }
                    names::check(nqn).map_err(|error| {
                        text_file::invalid_line(HOSTS_FILE, path, number, error.to_string())
                    })?;
                    named.insert(nqn.into());
                }
                Ok(Some(unauthenticated(named)))
            }
        }
    }
}

impl Hosts {
    /// Warns if `allowed`, which was read from a file, lets no host connect.
    pub(super) fn warn_if_none(&self, allowed: Option<&AllowedHosts>) {
        let (field, file, what) = match self {
            Hosts::File(file, _) => (HOSTS_FILE, file, "the NQN of a host"),
            Hosts::Secrets { file, .. } => (SECRETS_FILE, file, "a host and its secret"),
            Hosts::Any | Hosts::Listed(_) => return,
        };
        if allowed.is_some_and(AllowedHosts::is_empty) {
            tracing::warn!(
                "{}: no host may connect, because the file names none; add a line with {what}",
                field.with(file.display())
            );
        }
    }
}

/// A file of hosts that the target reads again and again.
#[derive(Debug)]
pub(super) struct HostsFile {
    pub(super) hosts: Hosts,
    /// The list of hosts in the last read of the file. A list takes effect when two reads in a row find it.
    /// During one read, a program may still be writing the file.
    last: Option<AllowedHosts>,
}

impl HostsFile {
    /// Prepares to read `hosts` repeatedly. Returns `None` if they do not come from a file.
    pub(super) fn new(hosts: Hosts) -> Option<Self> {
        matches!(hosts, Hosts::File(..) | Hosts::Secrets { .. }).then_some(Self { hosts, last: None })
    }

    /// Reads the file. Returns its hosts if the previous call found the same hosts, else `None`. One read is
    /// not enough, because a program that rewrites the file in place empties it first. A host that is missing
    /// from the result loses its connections.
    ///
    /// # Errors
    /// If the file cannot be read, or a line is invalid.
    pub(super) fn read_settled(&mut self) -> Result<Option<AllowedHosts>> {
        let before = self.last.take();
        self.last = self.hosts.read()?;
        Ok(self.last.clone().filter(|_| before == self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_counts_after_two_equal_reads() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        let mut hosts = HostsFile::new(Hosts::File(file.path().into(), BTreeSet::new())).unwrap();
        let names = |hosts: Option<AllowedHosts>| hosts.map(|hosts| hosts.into_keys().collect::<Vec<_>>());
        write("nqn.a\nnqn.b\n");
        assert_eq!(names(hosts.read_settled().unwrap()), None);
        assert_eq!(names(hosts.read_settled().unwrap()), Some(vec!["nqn.a".into(), "nqn.b".into()]));
        write("");
        assert_eq!(names(hosts.read_settled().unwrap()), None);
        write("nqn.a\n");
        assert_eq!(names(hosts.read_settled().unwrap()), None);
        write("x");
        assert!(hosts.read_settled().is_err());
        write("nqn.a\n");
        assert_eq!(names(hosts.read_settled().unwrap()), None);
        assert_eq!(names(hosts.read_settled().unwrap()), Some(vec!["nqn.a".into()]));
        assert!(HostsFile::new(Hosts::Any).is_none());
    }
}
