//! Connects two TCP state machines, and moves bytes from one to the other:
//!
//! ```text
//! cargo run --example library-tcp
//! ```
//!
//! The program plays the network: it hands each side's segments to the other side, and loses every tenth. A real program
//! carries the segments in IP packets. A state machine has no clock either: it is told the time.

use inlane_tcp::{Config, Connection, Ecn, Events, Flow, Listener, ReceiveBuffer, Secrets, Segment, Verdict};
use std::collections::VecDeque;

const MILLISECOND: u64 = 1_000_000;

/// The received bytes. A segment that arrives early is written behind a gap.
#[derive(Default)]
struct Received(Vec<u8>);

impl ReceiveBuffer for Received {
    fn write(&mut self, index: u64, bytes: &[u8]) {
        let (start, end) = (index as usize, index as usize + bytes.len());
        self.0.resize(self.0.len().max(end), 0);
        self.0[start..end].copy_from_slice(bytes);
    }
}

/// Returns a segment without payload.
fn bare(header: inlane_tcp::Header) -> Segment<'static> {
    Segment { header, payload: &[], ecn: Ecn::NotEct }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::default();
    let secrets = Secrets::new([7; 16]);
    let flow = Flow { local: "10.0.0.1:40000".parse()?, remote: "10.0.0.2:80".parse()? };
    let reverse = Flow { local: flow.remote, remote: flow.local };
    let (mut now, mut nothing) = (0, Received::default());

    // Three segments open the connection.
    let mut client = Connection::connect(now, &config, secrets.start(now, &flow))?;
    let mut listener = Listener::new(&config, Secrets::new([9; 16]), 16)?;
    let syn = client.poll_transmit(now).ok_or("a client begins with SYN")?.header;
    let Verdict::Reply(syn_ack) = listener.on_segment(now, &reverse, &bare(syn), None) else {
        return Err("the listener refuses the SYN".into());
    };
    assert!(client.on_segment(now, &bare(syn_ack), &mut nothing).contains(Events::CONNECTED));
    let ack = client.poll_transmit(now).ok_or("a client confirms the connection")?.header;
    let Verdict::Established(handshake) = listener.on_segment(now, &reverse, &bare(ack), None) else {
        return Err("the listener refuses the handshake".into());
    };
    let mut server = Connection::accept(now, &config, &handshake)?;

    // The client sends 200,000 bytes and closes its direction. The bytes stay in this program: a segment to send names a range.
    let bytes: Vec<u8> = (0..200_000u32).map(|index| (index % 251) as u8).collect();
    client.set_written(bytes.len() as u64)?;
    client.shutdown_write();
    // ANCHOR: network
    let (mut received, mut sent) = (Received::default(), 0);
    let mut acknowledgments = VecDeque::new();
    while !server.peer_closed() {
        while let Some(transmit) = client.poll_transmit(now) {
            for (header, range) in transmit.segments() {
                sent += 1;
                if sent % 10 != 0 {
                    let payload = &bytes[range.start as usize..range.end as usize];
                    server.on_segment(now, &Segment { header, payload, ecn: Ecn::NotEct }, &mut received);
                }
            }
        }
        server.set_consumed(server.received())?;
        acknowledgments.extend(std::iter::from_fn(|| server.poll_transmit(now)));
        now += MILLISECOND;
        for acknowledgment in acknowledgments.drain(..) {
            client.on_segment(now, &bare(acknowledgment.header), &mut nothing);
        }
        for connection in [&mut client, &mut server] {
            if connection.next_deadline().is_some_and(|deadline| deadline <= now) {
                connection.on_timer(now);
            }
        }
    }
    // ANCHOR_END: network
    let lost = sent / 10;
    println!(
        "{} bytes in {sent} segments, of which {lost} were lost; {} ms",
        received.0.len(),
        now / MILLISECOND
    );
    assert!(received.0 == bytes, "the bytes arrived as they were sent");
    Ok(())
}

#[test]
fn the_example_runs() {
    main().expect("the example runs");
}
