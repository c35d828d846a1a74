//! The flags of authentication (DH-HMAC-CHAP), and `inlane nvme gen-dhchap-key`: prints a new secret.

use super::connect::parse_nqn;
use clap::{Args, ValueEnum};
use inlane_nvme::authentication::{Group, Hash, Secret};

/// A hash function of the authentication.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum HashName {
    /// SHA-256
    Sha256,
    /// SHA-384
    Sha384,
    /// SHA-512
    Sha512,
}

impl From<HashName> for Hash {
    fn from(name: HashName) -> Self {
        match name {
            HashName::Sha256 => Hash::Sha256,
            HashName::Sha384 => Hash::Sha384,
            HashName::Sha512 => Hash::Sha512,
        }
    }
}

/// A Diffie-Hellman group of the authentication.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum GroupName {
    /// No Diffie-Hellman exchange
    Null,
    /// 2048 bits
    Ffdhe2048,
    /// 3072 bits
    Ffdhe3072,
    /// 4096 bits
    Ffdhe4096,
    /// 6144 bits
    Ffdhe6144,
    /// 8192 bits
    Ffdhe8192,
}

impl From<GroupName> for Group {
    fn from(name: GroupName) -> Self {
        match name {
            GroupName::Null => Group::Null,
            GroupName::Ffdhe2048 => Group::Ffdhe2048,
            GroupName::Ffdhe3072 => Group::Ffdhe3072,
            GroupName::Ffdhe4096 => Group::Ffdhe4096,
            GroupName::Ffdhe6144 => Group::Ffdhe6144,
            GroupName::Ffdhe8192 => Group::Ffdhe8192,
        }
    }
}

/// Prints a new secret for authentication (DH-HMAC-CHAP)
#[derive(Args)]
#[command(after_help = "\
Examples:
  # print a secret
  inlane nvme gen-dhchap-key

  # make a file for --secrets-file that only its owner may read, with a secret of each side
  (umask 077; inlane nvme gen-dhchap-key --host-nqn nqn.2026-11.org.example:a --target-secret >>secrets)")]
pub struct GenerateKey {
    /// Before each use, hash the secret together with its owner's NQN by this function. The secret gets the
    /// length of the hash: 32, 48 or 64 bytes [default: no hash, 32 bytes]
    #[arg(long, value_enum, value_name = "HASH")]
    hmac: Option<HashName>,
    /// Print a line of a secrets file: this NQN before the secret
    #[arg(long, value_name = "NQN", value_parser = parse_nqn)]
    host_nqn: Option<String>,
    /// Print a second secret, by which the target proves its identity to the host
    #[arg(long, requires = "host_nqn")]
    target_secret: bool,
}

impl GenerateKey {
    /// Prints the secret.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn run(&self) -> anyhow::Result<()> {
        let secret = || Secret::generate(self.hmac.map(Into::into)).to_text().to_string();
        let mut words: Vec<String> = self.host_nqn.iter().cloned().collect();
        words.push(secret());
        words.extend(self.target_secret.then(secret));
        crate::print(|out| writeln!(out, "{}", words.join(" ")))
    }
}
