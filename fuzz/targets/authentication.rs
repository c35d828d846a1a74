//! Tests the DH-HMAC-CHAP authentication against hostile peers, and the reader of secrets files. Arbitrary
//! messages reach both sides of an authentication. A peer without the secret must never be authenticated.

use inlane_nvme::authentication::{
    AuthenticationMessage, ControllerSide, Credentials, Group, Hash, HostSide, MAX_MESSAGE, Names, Progress,
    Secret, SecretsFile,
};
use std::sync::{Arc, OnceLock};

/// Returns random secrets, the same ones in each call. The fuzzed input cannot contain them by chance.
fn credentials() -> Arc<Credentials> {
    static SHARED: OnceLock<Arc<Credentials>> = OnceLock::new();
    let secret = || Secret::generate(None);
    SHARED.get_or_init(|| Arc::new(Credentials { host: secret(), target: Some(secret()) })).clone()
}

pub fn run(input: &[u8]) {
    let [mode, rest @ ..] = input else { return };
    let names = Names { host: "nqn.2026-11.a:host".into(), subsystem: "nqn.2026-11.a:target".into() };
    let credentials = credentials();
    let group = if mode & 1 == 0 { Group::Null } else { Group::Ffdhe2048 };
    match mode >> 1 & 3 {
        0 => {
            if let Ok((transaction, message)) = AuthenticationMessage::decode(rest) {
                let bytes = message.encode(transaction);
                assert_eq!(AuthenticationMessage::decode(&bytes), Ok((transaction, message)));
            }
        }
        1 => {
            // The input is a list of messages to the controller: length, a flag, and the bytes. If the flag
            // is set, fetch the controller's next message first.
            let mut side = ControllerSide::new(credentials.clone(), Hash::Sha256, group, names.clone());
            if mode & 8 != 0 {
                side.receive(&HostSide::new(&credentials, &names, 0).begin());
            }
            let mut rest = rest;
            while let [length, fetch, tail @ ..] = rest {
                let (message, tail) = tail.split_at(usize::from(*length).min(tail.len()));
                rest = tail;
                if fetch & 1 != 0 {
                    side.next_message(MAX_MESSAGE);
                }
                side.receive(message);
                assert_ne!(side.progress(), Progress::Authenticated);
            }
        }
        2 => {
            // The input replaces messages of the controller: the challenge and Success1, or only Success1.
            let mut host = HostSide::new(&credentials, &names, 0);
            if mode & 8 == 0 {
                let _ = host.challenged(rest);
            } else {
                let mut side = ControllerSide::new(credentials.clone(), Hash::Sha256, group, names.clone());
                side.receive(&host.begin());
                let challenge = side.next_message(MAX_MESSAGE).expect("a challenge");
                host.challenged(&challenge).expect("a valid challenge");
            }
            assert!(host.succeeded(rest).is_err());
        }
        _ => {
            let text = String::from_utf8_lossy(rest);
            if let Ok(file) = SecretsFile::parse(&text) {
                for credentials in file.hosts.values() {
                    let text = credentials.host.to_text();
                    assert_eq!(text.parse::<Secret>().expect("its own text"), credentials.host);
                }
            }
        }
    }
}
