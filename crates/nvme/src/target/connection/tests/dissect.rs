//! Records a session of a host with the target. Then checks that tshark finds no malformed PDU in the record.

use super::*;

#[test]
fn tshark_dissects_a_session_without_a_malformed_pdu() {
    const TEST: &str = "tshark_dissects_a_session_without_a_malformed_pdu";
    let missing = |program: &str| {
        std::process::Command::new(program).arg("--version").output().err().map(|_| program.to_string())
    };
    if let Some(program) = missing("text2pcap").or_else(|| missing("tshark")) {
        eprintln!("SKIPPED {TEST}: no {program}; install the package tshark");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for digests in ALL_DIGESTS {
        let subsystem = subsystem(&["memory:4M"], |_| {});
        let (mut admin, mut queue) = (Host::new(&subsystem), Host::new(&subsystem));
        (admin.trace, queue.trace) = (Some(String::new()), Some(String::new()));
        admin.initialize(digests);
        let controller = admin.enable(NQN);
        queue.initialize(digests);
        assert!(queue.connect(1, controller, NQN).status().is_success());
        admin.identify(cns::CONTROLLER, 0);
        admin.identify(cns::NAMESPACE, 1);
        admin.identify(cns::ACTIVE_NAMESPACES, 0);
        admin.log_page(log::HEALTH, 512);
        let data = pattern(64 << 10, 1);
        assert!(write(&mut queue, 0, &data, 512, 3).is_success());
        assert_eq!(read(&mut queue, 1, 0, 128, 512).1, data);
        let in_capsule = Command::blocks(io::WRITE, 1, 0, 8, Sgl::in_capsule(4096));
        assert!(queue.call(in_capsule, &data[..4096]).0.status().is_success());
        assert!(read(&mut queue, 9, 0, 8, 512).0 == Status::INVALID_NAMESPACE.dnr());
        for (name, host) in [("admin", &admin), ("queue", &queue)] {
            let (text, capture) =
                (directory.path().join("dump"), directory.path().join(format!("{name}.pcap")));
            std::fs::write(&text, host.trace.as_ref().unwrap()).unwrap();
            let made = std::process::Command::new("text2pcap")
                .args(["-q", "-D", "-T", "50000,4420"])
                .args([&text, &capture])
                .output()
                .unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            let fields = |filter: &str| {
                let run = std::process::Command::new("tshark")
                    .arg("-r")
                    .arg(&capture)
                    .args([
                        "-d",
                        "tcp.port==4420,nvme-tcp",
                        "-Y",
                        filter,
                        "-T",
                        "fields",
                        "-e",
                        "nvme-tcp.type",
                    ])
                    .output()
                    .unwrap();
                assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
                String::from_utf8_lossy(&run.stdout).into_owned()
            };
            assert_eq!(fields("_ws.malformed || _ws.expert.severity == error"), "", "{name} {digests:?}");
            let types = fields("nvme-tcp");
            let types: Vec<&str> = types.split([',', '\n']).filter(|it| !it.is_empty()).collect();
            assert!(types.len() >= 10, "{name} {digests:?}: {types:?}");
            for expected in if name == "queue" {
                &["0", "1", "4", "5", "6", "7", "9"][..]
            } else {
                &["0", "1", "4", "5", "7"]
            } {
                assert!(
                    types.contains(expected),
                    "{name} {digests:?}: no PDU of type {expected} in {types:?}"
                );
            }
        }
    }
}
