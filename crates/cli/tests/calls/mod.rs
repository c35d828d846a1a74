//! Compares the results of socket calls on the engine with those on the kernel. Some calls have bad pointers
//! and lengths, others are made while the socket has no connection. The `.py` files
//! make the calls.

use super::{Lab, must};

const CALLS: &str = concat!(
    include_str!("calls.py"),
    include_str!("rare.py"),
    include_str!("failed.py"),
    include_str!("times.py")
);

/// Runs the calls on the kernel and then on an engine with `--spin SPIN`, both with loopback addresses.
/// Returns the two outputs, or `None` if the test cannot run on this machine.
fn outcomes(test: &str, spin: &str) -> Option<[String; 2]> {
    let mut lab = Lab::new(test, &[("python3", "python3")])?;
    lab.serve(&["--loopback", "--spin", spin]);
    let kernel = must(lab.on_kernel("python3").args(["-c", CALLS]));
    let before = lab.status()["connections"]["accepted"].as_u64().unwrap();
    let engine = must(lab.offloaded("python3").args(["-c", CALLS]));
    assert!(lab.count("accepted") >= before + 8, "few connections were offloaded: {}", lab.status());
    Some([kernel, engine].map(|said| String::from_utf8(said).unwrap()))
}

fn compare(test: &str, spin: &str) {
    let Some([kernel, engine]) = outcomes(test, spin) else { return };
    for (kernel, engine) in kernel.lines().zip(engine.lines()) {
        assert_eq!(engine, kernel, "left: the engine, right: the kernel");
    }
    assert_eq!(engine.lines().count(), kernel.lines().count());
}

const BUFFERS: &str = include_str!("buffers.py");

/// The kernel needs 0.3 s for all of them.
#[test]
fn connections_with_small_buffers_wait_for_no_timer() {
    for spin in ["0s", "50us"] {
        let Some(mut lab) = Lab::new("smallbuf", &[("python3", "python3")]) else { return };
        lab.serve(&["--loopback", "--spin", spin]);
        let said = must(lab.offloaded("python3").args(["-c", BUFFERS]));
        for line in String::from_utf8(said).unwrap().lines() {
            let seconds: f64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
            assert!(seconds < 2.0, "{line}");
        }
        assert!(lab.count("accepted") >= 7, "{}", lab.status());
    }
}

const PORTS: &str = include_str!("ports.py");

/// The kernel keeps the port of a refused socket, so these calls cannot be compared with it.
#[test]
fn a_refused_socket_stays_at_the_port_that_its_program_has_chosen() {
    let Some(mut lab) = Lab::new("ports", &[("python3", "python3")]) else { return };
    lab.serve(&["--loopback"]);
    let said = must(lab.offloaded("python3").args(["-c", PORTS]));
    assert_eq!(String::from_utf8_lossy(&said), "all right\n");
}

#[test]
fn calls_with_bad_arguments_and_without_connections_return_what_they_return_on_the_kernel() {
    compare("calls", "0s");
}

#[test]
fn calls_return_what_they_return_on_the_kernel_if_the_engine_shares_memory() {
    compare("callsmem", "50us");
}
