//! Writes to a drive over NVMe/TCP and reads back what was written:
//!
//! ```text
//! cargo run --example library-nvme                     a drive in memory, which this program serves itself
//! cargo run --example library-nvme 10.0.0.7:4420 NQN   a drive of another target: overwrites its first MiB
//! ```

use inlane_nvme::initiator::{
    Address, ConnectOptions, HostIdentity, QueueOptions, Session, SessionOptions, read_range, write_range,
};
use inlane_nvme::target::subsystem::Limits;
use inlane_nvme::target::{Config, Hosts, Target};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Starts a target with a drive of 16 MiB in memory.
fn serve() -> Result<Target, Box<dyn std::error::Error>> {
    let config = Config {
        listen: vec!["127.0.0.1:0".parse()?],
        namespaces: vec!["memory:16M".parse()?],
        nqn: None,
        hosts: Hosts::Any,
        cores: Vec::new(),
        threads: 1,
        spin: Duration::ZERO,
        limits: Limits::default(),
    };
    Ok(Target::start(config)?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [address, subsystem] => write_and_read(address, subsystem),
        _ => {
            let target = serve()?;
            let address = target.subsystem().listeners[0].to_string();
            write_and_read(&address, &target.subsystem().nqn)?;
            let served = target.stop()?;
            println!("the target served {} connections", served.connections);
            Ok(())
        }
    }
}

fn write_and_read(address: &str, subsystem: &str) -> Result<(), Box<dyn std::error::Error>> {
    // ANCHOR: session
    let options = SessionOptions {
        // A session uses the first path that works. If that fails later, it goes on over the next one.
        paths: vec![address.parse::<Address>()?],
        connect: ConnectOptions {
            subsystem: subsystem.into(),
            host: HostIdentity::this_machine(),
            queue: QueueOptions::default(),
            keep_alive: Duration::from_secs(15),
        },
        nsid: None,
        io_queues: 1,
        reconnect: Duration::from_secs(5),
    };
    let mut session = Session::open(&options)?;
    let namespace = session.namespace();
    println!("a namespace of {} blocks of {} B", namespace.blocks, namespace.block_bytes);

    // Another thread may set `stop` to end a transfer.
    let stop = AtomicBool::new(false);
    let data: Vec<u8> = (0..1 << 20).map(|index: u32| (index % 251) as u8).collect();
    let written = write_range(&mut session, 0, None, &mut data.as_slice(), &stop)?;
    let mut read = Vec::new();
    read_range(&mut session, 0, written, &mut read, &stop)?;
    session.close();
    // ANCHOR_END: session
    assert!(read == data, "the drive returns what was written");
    println!("{written} bytes written, and read back");
    Ok(())
}

#[test]
fn the_example_runs() -> Result<(), Box<dyn std::error::Error>> {
    let target = serve()?;
    write_and_read(&target.subsystem().listeners[0].to_string(), &target.subsystem().nqn)?;
    target.stop()?;
    Ok(())
}
