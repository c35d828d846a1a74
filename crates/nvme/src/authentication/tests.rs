//! Tests of both sides of an authentication: against each other, against known values, and with wrong
//! messages.

use super::*;
use proptest::prelude::*;
use std::sync::Arc;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349";
const SUBSYSTEM: &str = "nqn.2026-11.inlane:test";

fn names() -> Names {
    Names { host: HOST.into(), subsystem: SUBSYSTEM.into() }
}

fn credentials(target: bool) -> Credentials {
    let secret = |transform| Secret::generate(transform);
    Credentials { host: secret(None), target: target.then(|| secret(Some(Hash::Sha384))) }
}

fn controller(credentials: &Credentials, hash: Hash, group: Group) -> ControllerSide {
    ControllerSide::new(Arc::new(credentials.clone()), hash, group, names())
}

/// Runs an authentication. Returns the controller's progress and the host's result.
fn run(controller: &mut ControllerSide, credentials: &Credentials) -> (Progress, Result<(), Refusal>) {
    let names = names();
    let mut host = HostSide::new(credentials, &names, 7);
    let result = (|| {
        controller.receive(&host.begin());
        let challenge = controller.next_message(MAX_MESSAGE).expect("a message");
        controller.receive(&host.challenged(&challenge)?);
        let success = controller.next_message(MAX_MESSAGE).expect("a message");
        if let Some(message) = host.succeeded(&success)? {
            controller.receive(&message);
        }
        Ok(())
    })();
    if let Err(Some(message)) = result.as_ref().map_err(|refusal: &Refusal| refusal.message(7)) {
        controller.receive(&message);
    }
    (controller.progress(), result)
}

#[test]
fn both_sides_authenticate_with_every_hash_and_group() {
    for hash in Hash::ALL {
        for group in Group::ALL {
            for target in [false, true] {
                let credentials = credentials(target);
                let mut controller = controller(&credentials, hash, group);
                let (progress, result) = run(&mut controller, &credentials);
                result.unwrap();
                assert_eq!(progress, Progress::Authenticated, "{hash} {group} {target}");
            }
        }
    }
}

#[test]
fn a_queue_can_be_authenticated_again() {
    let credentials = credentials(true);
    let mut controller = controller(&credentials, Hash::Sha256, Group::Null);
    for _ in 0..3 {
        assert_eq!(run(&mut controller, &credentials).0, Progress::Authenticated);
    }
}

#[test]
fn wrong_and_missing_secrets_are_refused() {
    let right = credentials(true);
    let with = |host: &Credentials, target: &Credentials| Credentials {
        host: host.host.clone(),
        target: target.target.clone(),
    };
    let other = credentials(true);
    for group in [Group::Null, Group::Ffdhe2048] {
        let controller = |credentials| controller(credentials, Hash::Sha512, group);
        let (progress, result) = run(&mut controller(&right), &with(&other, &right));
        assert_eq!(progress, Progress::Failed(AuthenticationFailure::FAILED));
        assert!(matches!(result, Err(Refusal::ByController(AuthenticationFailure::FAILED))), "{result:?}");
        let (progress, result) = run(&mut controller(&right), &with(&right, &other));
        assert_eq!(progress, Progress::Failed(AuthenticationFailure::FAILED));
        assert!(matches!(result, Err(Refusal::WrongController)), "{result:?}");
        // The host challenges the controller, which has no secret. The controller must refuse, because it
        // cannot answer.
        let no_target = Credentials { target: None, ..right.clone() };
        let (_, result) = run(&mut controller(&no_target), &right);
        assert!(matches!(result, Err(Refusal::ByController(AuthenticationFailure::FAILED))), "{result:?}");
        // The controller has a secret, but the host does not ask the controller to authenticate. The
        // authentication must succeed.
        let (progress, result) = run(&mut controller(&right), &no_target);
        assert_eq!(progress, Progress::Authenticated);
        result.unwrap();
    }
}

#[test]
fn secrets_have_the_representation_of_nvme_cli() {
    // Made by 'nvme gen-dhchap-key --secret' of nvme-cli 2.3 from the bytes 00h to 1Fh.
    let text = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    let secret: Secret = text.parse().unwrap();
    assert_eq!(secret.to_text().as_str(), text);
    assert_eq!(secret.key(HOST)[..], (0..32).collect::<Vec<u8>>()[..]);
    assert_eq!(format!("{secret:?}"), "Secret(32 bytes)");
    for transform in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
        let secret = Secret::generate(transform);
        assert_eq!(secret.to_text().parse::<Secret>().unwrap(), secret);
        assert_eq!(secret.key(HOST).len(), transform.map_or(32, Hash::bytes));
        assert!(transform.is_none() || secret.key(HOST) != secret.key(SUBSYSTEM));
    }
    let changed = text.replace("AAEC", "AAED");
    for wrong in ["", "DHHC-1", "DHHC-1:00", "DHHC-1:04:AA==:", "DHHC-1:00:AA==:", "DHHC-1:00:*:", &changed] {
        let error = wrong.parse::<Secret>().unwrap_err().to_string();
        assert!(wrong.len() < 20 || !error.contains("AAED"), "{error}");
    }
    assert!(text.trim_end_matches(':').parse::<Secret>().is_err());
}

#[test]
fn the_groups_are_those_of_rfc_7919() {
    // SHA-256 of each modulus, most significant byte first. The values were computed from the formula and X of
    // RFC 7919 appendix A with e as a sum of 1/n!, independently of the digits in group.rs.
    let digests = [
        "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966",
        "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17",
        "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e",
        "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7",
        "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833",
    ];
    for (group, digest) in Group::ALL[1..].iter().zip(digests) {
        let pair = KeyPair::with_exponent(*group, &[1; 64]);
        assert_eq!(pair.public().len(), group.value_bytes());
        let found = Hash::Sha256.of(&group.modulus());
        let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, digest, "{group}");
    }
    // The public value is 2 to the power of the exponent. With exponent 5 it needs no reduction by the
    // modulus: 32.
    let mut exponent = [0; 64];
    exponent[63] = 5;
    assert_eq!(KeyPair::with_exponent(Group::Ffdhe2048, &exponent).public()[255], 32);
}

#[test]
fn public_values_that_reveal_the_shared_secret_are_refused() {
    let pair = KeyPair::generate(Group::Ffdhe2048);
    let modulus = Group::Ffdhe2048.modulus();
    let small = |value| [vec![0; 255], vec![value]].concat();
    let below = |distance| [&modulus[..255], &[modulus[255] - distance]].concat();
    for value in [small(0), small(1), below(0), below(1), vec![0xFF; 256], vec![2; 255], vec![2; 257], vec![]]
    {
        assert!(pair.shared(&value).is_none());
    }
    assert_eq!(pair.shared(&small(2)).unwrap()[..], *pair.public());
    assert!(pair.shared(&below(2)).is_some());
}

#[test]
fn messages_out_of_order_are_refused_with_the_specified_failure() {
    let credentials = credentials(true);
    let names = names();
    let fresh = || controller(&credentials, Hash::Sha256, Group::Null);
    let refused = |mut controller: ControllerSide, message: &[u8]| {
        controller.receive(message);
        let (transaction, message) =
            AuthenticationMessage::decode(&controller.next_message(8).unwrap()).unwrap();
        let AuthenticationMessage::Failure1(failure) = message else { panic!("{message:?}") };
        assert_eq!(controller.progress(), Progress::Failed(failure));
        (transaction, failure)
    };
    let host = || HostSide::new(&credentials, &names, 7);
    let challenged = || {
        let (mut controller, mut host) = (fresh(), host());
        controller.receive(&host.begin());
        assert_eq!(controller.next_message(8), None, "a message that is longer than the host expects");
        let reply = host.challenged(&controller.next_message(MAX_MESSAGE).unwrap()).unwrap();
        (controller, reply)
    };
    let negotiated = || {
        let mut controller = fresh();
        controller.receive(&host().begin());
        controller
    };
    let (_, reply) = challenged();
    assert_eq!(refused(fresh(), &reply).1, AuthenticationFailure::INCORRECT_MESSAGE);
    assert_eq!(
        refused(fresh(), &AuthenticationMessage::Success2.encode(0)).1,
        AuthenticationFailure::INCORRECT_MESSAGE
    );
    assert_eq!(refused(fresh(), &[]).1, AuthenticationFailure::INCORRECT_PAYLOAD);
    assert_eq!(refused(fresh(), &[1, 9, 0, 0, 0, 0]).1, AuthenticationFailure::INCORRECT_MESSAGE);
    assert_eq!(refused(negotiated(), &host().begin()), (7, AuthenticationFailure::INCORRECT_MESSAGE));
    assert_eq!(refused(negotiated(), &reply).1, AuthenticationFailure::INCORRECT_MESSAGE);
    let (controller, reply) = challenged();
    assert_eq!(refused(controller, &reply[..reply.len() - 1]).1, AuthenticationFailure::INCORRECT_PAYLOAD);
    let (controller, mut reply) = challenged();
    reply[4] ^= 1;
    assert_eq!(refused(controller, &reply), (7, AuthenticationFailure::INCORRECT_PAYLOAD));
    let (mut controller, reply) = challenged();
    controller.receive(&reply);
    assert_eq!(refused(controller, &reply).1, AuthenticationFailure::INCORRECT_MESSAGE);
    assert_eq!(fresh().next_message(MAX_MESSAGE), None);
}

#[test]
fn unusable_offers_are_refused_with_the_specified_failure() {
    let credentials = credentials(false);
    let mut all = Offer { concatenation: 0, hashes: Hash::ALL.into(), groups: Group::ALL.into() };
    let failure = |offer: Option<Offer>| {
        let mut controller = controller(&credentials, Hash::Sha384, Group::Ffdhe3072);
        controller.receive(&AuthenticationMessage::Negotiate(offer).encode(1));
        AuthenticationMessage::decode(&controller.next_message(MAX_MESSAGE).unwrap()).unwrap().1
    };
    assert_eq!(failure(None), AuthenticationMessage::Failure1(AuthenticationFailure::PROTOCOL_UNUSABLE));
    all.concatenation = 1;
    assert_eq!(
        failure(Some(all.clone())),
        AuthenticationMessage::Failure1(AuthenticationFailure::CONCATENATION_MISMATCH)
    );
    all.concatenation = 0;
    all.hashes = vec![Hash::Sha256, Hash::Sha512];
    assert_eq!(
        failure(Some(all.clone())),
        AuthenticationMessage::Failure1(AuthenticationFailure::HASH_UNUSABLE)
    );
    all.hashes = vec![Hash::Sha512, Hash::Sha384];
    all.groups = vec![Group::Null, Group::Ffdhe8192];
    assert_eq!(failure(Some(all)), AuthenticationMessage::Failure1(AuthenticationFailure::GROUP_UNUSABLE));
}

#[test]
fn a_reflected_challenge_is_refused() {
    let credentials = credentials(true);
    let names = names();
    let mut controller = controller(&credentials, Hash::Sha256, Group::Null);
    let mut host = HostSide::new(&credentials, &names, 7);
    controller.receive(&host.begin());
    let challenge = controller.next_message(MAX_MESSAGE).unwrap();
    let reply = host.challenged(&challenge).unwrap();
    let (AuthenticationMessage::Challenge(challenge), AuthenticationMessage::Reply(mut reply)) = (
        AuthenticationMessage::decode(&challenge).unwrap().1,
        AuthenticationMessage::decode(&reply).unwrap().1,
    ) else {
        panic!("a challenge and a reply");
    };
    reply.challenge = Some((1, challenge.challenge));
    controller.receive(&AuthenticationMessage::Reply(reply).encode(7));
    let message = AuthenticationMessage::decode(&controller.next_message(MAX_MESSAGE).unwrap()).unwrap().1;
    assert_eq!(message, AuthenticationMessage::Failure1(AuthenticationFailure::FAILED));
}

#[test]
fn files_of_secrets_are_parsed_and_their_errors_name_the_line() {
    let secret = || Secret::generate(None).to_text().to_string();
    let (first, second) = (secret(), secret());
    let text = format!("# hosts\n\n{HOST} {first}\t{second} # both\nnqn.2026-11.b {second}\n");
    let file = SecretsFile::parse(&text).unwrap();
    assert_eq!(file.hosts.len(), 2);
    assert_eq!(file.hosts[HOST].target, Some(second.parse().unwrap()));
    assert_eq!(file.hosts["nqn.2026-11.b"].target, None);
    let wrong = [
        (format!("{HOST}\n"), 1),
        (format!("\n{first} {HOST}"), 2),
        (format!("{HOST} {first} {second} more"), 1),
        (format!("{HOST} {first} {first}"), 1),
        (format!("{HOST} {first}\n{HOST} {second}"), 2),
        (format!("host {first}"), 1),
        (format!("{HOST} {}", &first[..first.len() - 1]), 1),
    ];
    for (text, line) in wrong {
        let (at, why) = SecretsFile::parse(&text).unwrap_err();
        assert_eq!(at, line, "{why}");
        assert!(!why.contains(&first[10..30]), "{why}");
    }
}

#[test]
fn files_of_secrets_must_be_private() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secrets");
    std::fs::write(&path, format!("{HOST} {}", *Secret::generate(None).to_text())).unwrap();
    for (mode, private) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        match SecretsFile::read(&path) {
            Ok(file) => assert!(private && file.hosts.len() == 1, "{mode:o}"),
            Err(error) => assert!(!private && error.to_string().contains("chmod 600"), "{error}"),
        }
    }
    assert!(SecretsFile::read(folder.path()).unwrap_err().to_string().contains("directory"));
}

/// Returns any message.
fn message() -> impl Strategy<Value = AuthenticationMessage> {
    let bytes = |hash: Hash| prop::collection::vec(any::<u8>(), hash.bytes());
    let hash = || prop::sample::select(&Hash::ALL[..]);
    let group = || prop::sample::select(&Group::ALL[..]);
    let offer = (any::<u8>(), prop::collection::vec(hash(), 0..4), prop::collection::vec(group(), 0..7))
        .prop_map(|(concatenation, hashes, groups)| Offer { concatenation, hashes, groups });
    let challenge = (hash(), group(), any::<u32>()).prop_flat_map(move |(hash, group, sequence)| {
        (bytes(hash), prop::collection::vec(any::<u8>(), group.value_bytes()))
            .prop_map(move |(challenge, value)| Challenge { hash, group, sequence, challenge, value })
    });
    let reply =
        (hash(), group(), prop::option::of(any::<u32>())).prop_flat_map(move |(hash, group, sequence)| {
            (bytes(hash), bytes(hash), prop::collection::vec(any::<u8>(), group.value_bytes())).prop_map(
                move |(response, challenge, value)| AuthenticationReply {
                    response,
                    challenge: sequence.map(|sequence| (sequence, challenge)),
                    value,
                },
            )
        });
    let success = hash().prop_flat_map(move |hash| {
        prop::option::of(bytes(hash)).prop_map(move |response| AuthenticationMessage::Success1 {
            hash_bytes: hash.bytes() as u8,
            response,
        })
    });
    prop_oneof![
        prop::option::of(offer).prop_map(AuthenticationMessage::Negotiate),
        challenge.prop_map(AuthenticationMessage::Challenge),
        reply.prop_map(AuthenticationMessage::Reply),
        success,
        Just(AuthenticationMessage::Success2),
        any::<u8>().prop_map(|code| AuthenticationMessage::Failure1(AuthenticationFailure(code))),
        any::<u8>().prop_map(|code| AuthenticationMessage::Failure2(AuthenticationFailure(code))),
    ]
}

proptest! {
    #[test]
    fn messages_are_decoded_as_they_were_encoded(message in message(), transaction: u16, padding in 0_usize..100) {
        let mut bytes = message.encode(transaction);
        prop_assert!(bytes.len() <= MAX_MESSAGE);
        let length = bytes.len();
        bytes.resize(length + padding, 0);
        prop_assert_eq!(AuthenticationMessage::decode(&bytes).unwrap(), (transaction, message.clone()));
        // A message without its last byte must be invalid. The exception is Success1 without a response,
        // because its response field is unused and may be missing.
        if !matches!(message, AuthenticationMessage::Success1 { response: None, .. }) {
            prop_assert!(AuthenticationMessage::decode(&bytes[..length - 1]).is_err());
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), start in 0_usize..7) {
        // Each input starts with the type and the identifier of a message.
        let starts = [[0, 0], [1, 1], [1, 2], [1, 3], [1, 4], [0, 0xF0], [0, 0xF1]];
        let bytes = [&starts[start][..], &bytes].concat();
        if let Ok((transaction, message)) = AuthenticationMessage::decode(&bytes) {
            prop_assert_eq!(AuthenticationMessage::decode(&message.encode(transaction)), Ok((transaction, message)));
        }
    }

    #[test]
    fn a_changed_reply_never_authenticates(position in 6_usize..80, change in 1_u8..) {
        let credentials = credentials(true);
        let names = names();
        let mut controller = controller(&credentials, Hash::Sha256, Group::Null);
        let mut host = HostSide::new(&credentials, &names, 7);
        controller.receive(&host.begin());
        let mut reply = host.challenged(&controller.next_message(MAX_MESSAGE).unwrap()).unwrap();
        reply[position] ^= change;
        controller.receive(&reply);
        let Some(message) = controller.next_message(MAX_MESSAGE) else {
            return Err(TestCaseError::fail("no message"));
        };
        // Bytes 7 and 9 are reserved, so a change of them must have no effect. Byte 8 is the flag for C2.
        // Every value except 0 sets this flag. If C2 is changed or missing, the host must refuse the
        // response.
        let reserved = matches!(position, 7 | 9);
        let accepted = match AuthenticationMessage::decode(&message).unwrap().1 {
            AuthenticationMessage::Success1 { response: Some(_), .. } => host.succeeded(&message).is_ok(),
            AuthenticationMessage::Success1 { response: None, .. } => host.succeeded(&message).is_ok(),
            _ => false,
        };
        let still_valid = position == 8 && change != 1;
        prop_assert_eq!(accepted, reserved || still_valid);
    }
}
