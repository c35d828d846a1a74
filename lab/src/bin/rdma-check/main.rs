//! An exchange of data between the connections of `inlane-rdma` and Linux's software RoCEv2 (rxe). It runs in a virtual machine.
//!
//! ```sh
//! rdma-check INTERFACE ADDRESS OTHER_INTERFACE OTHER_ADDRESS
//! ```
//!
//! inlane's packets leave by the first interface. rxe0 is on the second one, and `rxe-peer` uses it by libibverbs. Prints a line
//! for each step.

mod link;
mod peer;
mod session;

use anyhow::{Context, bail, ensure};
use inlane_rdma::EndReason;
use inlane_wire::roce;
use link::{Link, Side};
use peer::{Completion, Peer, REMOTE_ACCESS, REMOTE_INVALID_REQUEST};
use session::{BYTES, Faults, Session, byte};
use std::fs::read_to_string;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [interface, address, other_interface, other_address] = arguments.as_slice() else {
        bail!("give two interfaces, each with its address")
    };
    let local = Side { interface: interface.clone(), address: address.parse()? };
    let remote = Side { interface: other_interface.clone(), address: other_address.parse()? };
    let mut link = Link::open(&local, &remote)?;
    let mut peer = Peer::start(&[other_address, address])?;
    exchange(&mut link, &mut peer)?;
    wrong_key_of_linux(&mut link, &mut peer)?;
    long_message(&mut link, &mut peer)?;
    wrong_key_of_inlane(&mut link, &mut peer)?;
    peer.end()
}

/// Returns a counter of rxe0.
fn counter(name: &str) -> anyhow::Result<u64> {
    let path = format!("/sys/class/infiniband/rxe0/ports/1/hw_counters/{name}");
    Ok(read_to_string(&path).with_context(|| path)?.trim().parse()?)
}

/// Data in both directions, with lost and damaged packets.
fn exchange(link: &mut Link, peer: &mut Peer) -> anyhow::Result<()> {
    let (arrived, gaps) = (counter("rcvd_pkts")?, counter("out_of_seq_request")?);
    let mut session = Session::open(link, peer, 17, 0)?;
    session.faults = Faults { lose: 23, damage: 29, lose_received: 7 };

    // A retransmission has immediate data, which Linux refuses until a receive is posted.
    session.write(30_000)?;
    session.run("a refusal without a receive", |session| Ok(session.counts.not_ready > 0))?;
    ensure!(session.ask("receive 200")? == "ok", "receives");
    session.write_up_to(100_000)?;
    ensure!(session.ask("check 100000")? == "same", "the bytes in Linux's memory");
    let own = session.connection.counters();
    let counts = session.counts.clone();
    ensure!(counts.lost > 0 && counts.damaged > 0 && counts.missing > 0, "{counts:?}");
    ensure!(own.retransmitted > 0 && own.refused_control == 0, "{own:?}");
    ensure!(counter("out_of_seq_request")? > gaps, "Linux counts no gap");
    // Linux counts packets behind the check of the ICRC. Control messages end before it.
    session.run("Linux's count of packets", |session| {
        Ok(counter("rcvd_pkts")? - arrived >= session.counts.intact)
    })?;
    let counted = counter("rcvd_pkts")? - arrived;
    ensure!(counted == session.counts.intact, "Linux has received {counted} packets: {:?}", session.counts);
    // Nothing from Linux has arrived, so inlane expects its first packet.
    let expected = session.remote.psn;
    let completions = session.completions(1)?;
    ensure!(
        completions
            .iter()
            .all(|done| done.status == 0 && done.kind == "received" && done.immediate == expected),
        "{completions:?}"
    );
    println!(
        "inlane to Linux: 100000 bytes, {} packets lost, {} with a wrong ICRC dropped, {} sequence errors: ok",
        counts.lost, counts.damaged, counts.missing
    );

    // Writes of odd sizes from Linux.
    let (mut at, mut writes) = (0, 0);
    while at < 60_000 {
        let grant = session.grants.iter().find(|grant| (grant.start..grant.end).contains(&at));
        let grant = *grant.with_context(|| format!("no memory for byte {at}: {:?}", session.grants))?;
        let len = (grant.end - at).min(1 + writes * 367 % 1024);
        ensure!(session.ask(&format!("write {at} {} {len}", grant.key))? == "ok", "a write");
        (at, writes) = (at + len, writes + 1);
    }
    let completions = session.completions(writes as usize)?;
    ensure!(
        completions.len() as u64 == writes
            && completions.iter().all(|done| done.status == 0 && done.kind == "written"),
        "{completions:?}"
    );
    ensure!(session.connection.received() == at, "received {}", session.connection.received());
    let wrong = (0..BYTES as u64).find(|&i| session.target.0[i as usize] != if i < at { byte(i) } else { 0 });
    ensure!(wrong.is_none(), "byte {wrong:?} from Linux differs");
    let own = session.connection.counters();
    ensure!(own.placed_ring == at && own.duplicates > 0, "{own:?}");
    println!("Linux to inlane: {at} bytes in {writes} writes, {} duplicates not placed: ok", own.duplicates);

    // The end of the stream is a write without data. Its immediate data is the PSN that inlane expects next.
    session.faults = Faults::default();
    session.write_up_to(100_600)?;
    session.connection.shutdown_write();
    session.run("the end of the stream", |session| Ok(session.connection.end_acknowledged()))?;
    ensure!(session.ask("check 100600")? == "same", "the bytes in Linux's memory");
    let immediate = session.remote.psn.wrapping_add(writes as u32) & roce::MASK;
    let completions = session.completions(1)?;
    let last = Completion { status: 0, kind: "received".into(), len: 0, immediate };
    ensure!(completions.last() == Some(&last), "{completions:?}");
    println!("the end of the stream, with immediate data: ok");
    Ok(())
}

/// Linux writes with a wrong key.
fn wrong_key_of_linux(link: &mut Link, peer: &mut Peer) -> anyhow::Result<()> {
    let mut session = Session::open(link, peer, 18, 0)?;
    session.send()?;
    let key = session.grants.first().context("memory information")?.key;
    session.ask(&format!("write 0 {} 100", key ^ 1))?;
    let completions = session.completions(1)?;
    ensure!(completions.len() == 1 && completions[0].status == REMOTE_ACCESS, "{completions:?}");
    let own = session.connection.counters();
    ensure!(own.refused_key > 0 && own.placed_ring == 0 && session.connection.received() == 0, "{own:?}");
    println!("a wrong key of Linux: ok");
    Ok(())
}

/// A message of several packets from Linux: FIRST, MIDDLE and LAST. inlane takes messages of one packet only.
fn long_message(link: &mut Link, peer: &mut Peer) -> anyhow::Result<()> {
    let mut session = Session::open(link, peer, 19, 0)?;
    session.send()?;
    let key = session.grants.first().context("memory information")?.key;
    session.ask(&format!("write 0 {key} 3000"))?;
    let completions = session.completions(1)?;
    ensure!(completions.len() == 1 && completions[0].status == REMOTE_INVALID_REQUEST, "{completions:?}");
    let own = session.connection.counters();
    ensure!(own.malformed > 0 && own.placed_ring == 0 && session.connection.received() == 0, "{own:?}");
    println!("a message of several packets: ok");
    Ok(())
}

/// inlane writes with a wrong key.
fn wrong_key_of_inlane(link: &mut Link, peer: &mut Peer) -> anyhow::Result<()> {
    let mut session = Session::open(link, peer, 20, 1)?;
    session.connection.set_written(session.now(), 5000)?;
    session.run("the end of a connection with a wrong key", |session| {
        Ok(session.connection.ended().is_some())
    })?;
    ensure!(session.connection.ended() == Some(EndReason::Reset), "{:?}", session.connection.ended());
    ensure!(
        session.counts.access > 0 && session.connection.next_deadline().is_none(),
        "{:?}",
        session.counts
    );
    ensure!(session.ask("check 0")? == "same", "Linux's memory has changed");
    println!("a wrong key of inlane: ok");
    Ok(())
}
