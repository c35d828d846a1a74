use super::*;
use crate::trace::Hop;
use inlane_core::clock::Clock;
use inlane_ports::spec::PortSpec;

const COUNT: usize = 100;

fn stages(floors: &[Floor]) -> Vec<Stage> {
    floors.iter().map(|floor| floor.stage).collect()
}

#[test]
fn in_memory_each_processing_stage_has_a_floor() {
    let floors = in_memory(&Clock::new(), None, COUNT).unwrap();
    let expected = [
        Stage::ToCardProtocol,
        Stage::ToCardPlacement,
        Stage::SendProtocol,
        Stage::ReceiveProtocol,
        Stage::FromCardProtocol,
        Stage::FromCardPlacement,
    ];
    assert_eq!(stages(&floors), expected);
    assert!(floors.iter().all(|floor| floor.times.median_ns > 0.0), "{floors:?}");
}

#[test]
fn shared_lines_have_floors() {
    let both = [Stage::HandOver, Stage::WakeUp];
    let floors = of_shared_lines(&Clock::new(), both, None, COUNT).unwrap();
    assert_eq!(stages(&floors), both);
    assert!(floors[0].times.p99_ns + floors[1].times.p99_ns > 0.0, "{floors:?}");
}

#[test]
fn each_link_has_floors() {
    let folder = tempfile::tempdir().unwrap();
    for (hop, kind, first) in [
        (Hop::ToCard, "ntb", Stage::ToCardDataMovement),
        (Hop::Network, "memif", Stage::DataMovement),
        (Hop::FromCard, "ntb", Stage::FromCardDataMovement),
    ] {
        let socket = folder.path().join(format!("{first:?}"));
        let ports = ["server", "client"]
            .map(|role| PortSpec::parse(&format!("{kind}:{},role={role}", socket.display())).unwrap());
        if kind == "memif" && cfg!(not(feature = "dpdk")) {
            continue; // memif ports need DPDK's part of the program.
        }
        let floors = of_port(&Clock::new(), hop, &ports, None, COUNT).unwrap();
        let at = Stage::ALL.iter().position(|&stage| stage == first).unwrap();
        assert_eq!(stages(&floors.stages), Stage::ALL[at..at + 4]);
        assert!(floors.passage.unwrap().median_ns > 0.0);
        assert!(floors.stages.iter().all(|floor| floor.measured == Measured::PortAlone));
    }
}
