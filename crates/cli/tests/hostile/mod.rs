//! What a hostile program, and an engine that has stopped, can do to other programs.

use super::*;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/peer.py");

/// A program sends the engine descriptors whose close blocks for ten seconds, in each way that it can.
#[test]
fn descriptors_whose_close_blocks_delay_nobody() {
    let Some(mut lab) = Lab::new("blocking", &[("python3", "python3")]) else { return };
    lab.serve(&[]);
    let _echo = Running::start(lab.on_kernel("python3").args([SCRIPT, "echo", KERNEL]));
    let mut exchange = lab.offloaded("python3");
    let exchange = exchange.args([SCRIPT, "exchange", KERNEL]).stdout(Stdio::piped()).stdin(Stdio::piped());
    let mut exchange = exchange.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(exchange.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "connected");
    let sent = must(lab.offloaded("python3").args([SCRIPT, "block", KERNEL]).arg(lab.socket()));
    assert_eq!(String::from_utf8_lossy(&sent), "sent 5\n");
    std::thread::sleep(Duration::from_secs(1));
    drop(exchange.stdin.take());
    let longest: f64 = lines.next().unwrap().unwrap().parse().unwrap();
    assert!(longest < 3.0, "one exchange took {longest} s");
    assert!(exchange.wait().unwrap().success());
    assert_eq!(lab.count("connected"), 4);
}
