//! The hosts that may connect.

use crate::authentication::{Group, Hash, SecretsFile};
use crate::target::subsystem::{AllowedHosts, Authentication, check_nqn};
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Which hosts may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Every host.
    Any,
    /// Only the hosts with these NQNs may connect.
    Listed(BTreeSet<String>),
    /// The hosts whose NQNs are the lines of a file, and the listed ones. The file is read again when it
    /// changes.
    File(PathBuf, BTreeSet<String>),
    /// The hosts of a [`SecretsFile`], after they have authenticated themselves. The file is read again when it
    /// changes.
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
                let text = std::fs::read_to_string(path).map_err(|source| {
                    if source.kind() == std::io::ErrorKind::IsADirectory {
                        let why = "it is a directory; name a file in it".into();
                        return Error::Invalid { what: format!("--hosts-file {}", path.display()), why };
                    }
                    let what = format!("--hosts-file {}: it cannot be read", path.display());
                    Error::with_remedy(what, source, "name a text file that you may read")
                })?;
                let mut named = others.clone();
                for (line, number) in text.lines().zip(1..) {
                    let nqn = line.split('#').next().unwrap_or_default().trim();
                    if nqn.is_empty() {
                        continue;
                    }
                    check_nqn(nqn).map_err(|error| Error::Invalid {
                        what: format!("--hosts-file {}, line {number}", path.display()),
                        why: error.to_string(),
                    })?;
                    named.insert(nqn.into());
                }
                Ok(Some(unauthenticated(named)))
            }
        }
    }
}
