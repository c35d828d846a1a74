//! The identity that a host shows to targets: its NQN and its host identifier. By default, both are read from
//! files of this machine.

use crate::authentication::{Credentials, SecretsFile};
use crate::field::{HOST_NQN, SECRETS_FILE};
use crate::wire::nqn;
use crate::{Error, Result};
use std::path::Path;
use std::sync::Arc;

const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// The NQN and the identifier of a host, with the secrets that prove the host's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// The host's NQN.
    pub nqn: String,
    /// The host identifier: a UUID.
    pub id: [u8; 16],
    /// The secrets for targets that require authentication. `None` if there are none.
    pub credentials: Option<Arc<Credentials>>,
}

impl HostIdentity {
    /// Returns the identity of this machine. Like nvme-cli, reads it from `/etc/nvme/hostnqn` and
    /// `/etc/nvme/hostid`.
    ///
    /// If the host identifier is missing, takes it from the NQN. If the NQN has none, takes it from
    /// `/etc/machine-id`. If the NQN is missing, makes it from the host identifier.
    pub fn this_machine() -> Self {
        let read = |path| std::fs::read_to_string(path).ok().map(|text| text.trim().to_string());
        let machine = read("/etc/machine-id").and_then(|text| parse_uuid(&text)).unwrap_or([0x69; 16]);
        let nqn = read("/etc/nvme/hostnqn").filter(|nqn| nqn::check(nqn).is_ok());
        let from_nqn = |nqn: &String| parse_uuid(nqn.strip_prefix(UUID_PREFIX)?);
        let id = read("/etc/nvme/hostid").and_then(|text| parse_uuid(&text));
        let id = id.or_else(|| nqn.as_ref().and_then(from_nqn)).unwrap_or(machine);
        let nqn = nqn.unwrap_or_else(|| format!("{UUID_PREFIX}{}", format_uuid(&id)));
        Self { nqn, id, credentials: None }
    }

    /// Replaces the NQN of the identity. If the new NQN contains a UUID, the UUID also replaces the host
    /// identifier.
    ///
    /// # Errors
    /// If the NQN is invalid.
    pub fn with_nqn(self, nqn: &str) -> Result<Self> {
        nqn::check(nqn)?;
        let id = nqn.strip_prefix(UUID_PREFIX).and_then(parse_uuid).unwrap_or(self.id);
        Ok(Self { nqn: nqn.into(), id, credentials: self.credentials })
    }

    /// Reads this host's secrets for authentication from a [`SecretsFile`]: the line that begins with this
    /// identity's NQN.
    ///
    /// # Errors
    /// If the file cannot be read, or has no line for the NQN.
    pub fn with_secrets_file(self, path: &Path) -> Result<Self> {
        let credentials = SecretsFile::read(path)?.hosts.get(&self.nqn).cloned();
        let credentials = credentials.ok_or_else(|| {
            let why = format!(
                "it has no line for this host, {}; add one, or choose a line with {HOST_NQN}",
                self.nqn
            );
            Error::invalid(SECRETS_FILE.with(path.display()), why)
        })?;
        Ok(Self { credentials: Some(credentials), ..self })
    }
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits = text.replace('-', "");
    let are_digits = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    are_digits.then(|| u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes))?
}

fn format_uuid(id: &[u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(*id));
    [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]).join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities() {
        let machine = HostIdentity::this_machine();
        nqn::check(&machine.nqn).unwrap();
        let uuid = "0123456789abcdef0123456789abcdef";
        let nqn = format!("{UUID_PREFIX}{}", format_uuid(&parse_uuid(uuid).unwrap()));
        assert_eq!(nqn, format!("{UUID_PREFIX}01234567-89ab-cdef-0123-456789abcdef"));
        assert_eq!(machine.clone().with_nqn(&nqn).unwrap().id[..2], [0x01, 0x23]);
        for bad in ["", "x", "nqn.a b", &format!("nqn.{}", "a".repeat(220))] {
            assert!(machine.clone().with_nqn(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_uuid("zz"), None);
        assert_eq!(parse_uuid(&"é".repeat(16)), None);
    }
}
