use super::*;
use crate::segment::Ecn;
use crate::{Connection, MILLISECOND, ReceiveBuffer};

/// A listener that defers connections for three seconds, and a client whose SYN it has answered.
struct Bench {
    listener: Listener,
    client: Connection,
    flow: Flow,
}

struct Nowhere;

impl ReceiveBuffer for Nowhere {
    fn write(&mut self, _: u64, _: &[u8]) {}
}

fn bare(header: Header) -> Segment<'static> {
    Segment { header, payload: &[], ecn: Ecn::NotEct }
}

impl Bench {
    fn new() -> Self {
        let config = Config::default();
        let secrets = Secrets::new([1; 16]);
        let flow = Flow { local: ([10, 0, 0, 1], 1).into(), remote: ([10, 0, 0, 2], 2).into() };
        let mut listener = Listener::new(&config, secrets.clone(), 4).unwrap();
        listener.set_defer(3 * SECOND);
        let client = Connection::connect(0, &config, secrets.start(0, &flow)).unwrap();
        Self { listener, client, flow }
    }

    /// Passes the client's next segment to the listener.
    fn next(&mut self, now: u64) -> Verdict {
        let header = self.client.poll_transmit(now).unwrap().header;
        self.listener.on_segment(now, &self.flow, &bare(header), None)
    }

    /// Opens the connection at the client, whose last acknowledgment the listener gets after 5 ms.
    fn open(&mut self) {
        let Verdict::Reply(reply) = self.next(0) else { panic!() };
        self.client.on_segment(5 * MILLISECOND, &bare(reply), &mut Nowhere);
        assert_eq!(self.next(5 * MILLISECOND), Verdict::Drop);
    }
}

#[test]
fn a_deferred_connection_is_established_by_its_first_data() {
    let mut bench = Bench::new();
    bench.open();
    bench.listener.on_timer(2 * SECOND, |_, header| panic!("{header:?}"));
    bench.client.set_written(4).unwrap();
    let sent = bench.client.poll_transmit(2 * SECOND).unwrap();
    let data = Segment { header: sent.header, payload: b"data", ecn: Ecn::NotEct };
    let verdict = bench.listener.on_segment(2 * SECOND, &bench.flow, &data, None);
    let Verdict::Established(handshake) = verdict else { panic!("{verdict:?}") };
    assert_eq!(handshake.rtt, Some(5 * MILLISECOND), "the wait for data is not part of the round trip");
    assert_eq!(bench.listener.half_open(), 0);
}

#[test]
fn a_deferred_connection_without_data_is_established_after_its_time() {
    let mut bench = Bench::new();
    bench.open();
    let mut sent = Vec::new();
    let due = 3 * SECOND + 5 * MILLISECOND;
    bench.listener.on_timer(due - 1, |_, header| panic!("{header:?}"));
    bench.listener.on_timer(due, |_, header| sent.push(header));
    let [header] = sent[..] else { panic!("{sent:?}") };
    assert_eq!(header.flags & (SYN | ACK), SYN | ACK);
    bench.client.on_segment(due, &bare(header), &mut Nowhere);
    assert!(matches!(bench.next(due), Verdict::Established(_)));
}

#[test]
fn a_deferred_connection_does_not_wait_for_one_with_a_longer_time() {
    let mut bench = Bench::new();
    bench.listener.set_defer(10_000 * SECOND);
    bench.open();
    bench.listener.set_defer(3 * SECOND);
    bench.flow.remote = ([10, 0, 0, 2], 3).into();
    let (config, secrets) = (Config::default(), Secrets::new([1; 16]));
    bench.client = Connection::connect(0, &config, secrets.start(0, &bench.flow)).unwrap();
    bench.open();
    let due = 3 * SECOND + 5 * MILLISECOND;
    let mut repeated = Vec::new();
    bench.listener.on_timer(due, |flow, _| repeated.push(*flow));
    assert_eq!(repeated, [bench.flow]);
}
