//! RDMA over memory that two engines share: large packets without an ICRC, written and read in place, and how many there are.

use super::*;

const SHARED: Setup = Setup {
    segment_mtu: 9000,
    capacity: usize::MAX,
    in_place: true,
    rdma: true,
    accepts_partial: true,
    peer_accepts_partial: true,
    buffer: 1 << 20,
};

/// Returns the IP packet of a frame with an RDMA packet. `None` for other frames.
fn rdma_packet(frame: &[u8]) -> Option<&[u8]> {
    is_rdma(frame).then(|| &frame[IP..])
}

/// Transfers data in both directions. Returns all frames.
fn frames(setups: [Setup; 2], in_place: bool) -> Vec<Vec<u8>> {
    let mut link = Link::of(setups.map(|setup| Setup { in_place, ..setup }), [data(700_001), data(300_002)]);
    link.world.recorded = Some(Vec::new());
    link.run(|_| 1);
    assert_eq!(link.transports(), [("rdma", None); 2]);
    for (counters, received) in counters(&link.world).into_iter().zip([300_002, 700_001]) {
        let expected = RdmaCounters { connections: 1, placed_bytes: received, ..RdmaCounters::default() };
        assert_eq!(counters, expected);
    }
    let frames = link.world.recorded.take().unwrap();
    for (machine, at) in link.world.machines.iter().zip([0, 1]) {
        let rdma = frames.iter().filter(|frame| is_rdma(frame) && usize::from(frame[5]) == at + 1).count();
        let left_out = setups[at].accepts_partial && setups[1 - at].peer_accepts_partial;
        assert!(machine.read_in_place >= if left_out && in_place { rdma } else { 0 }, "{rdma} packets");
    }
    link.close(|_| 1);
    frames
}

#[test]
fn packets_in_place_are_those_of_the_slow_path() {
    assert!(frames([SHARED; 2], true) == frames([SHARED; 2], false));
}

#[test]
fn packets_are_as_large_as_segments_and_have_an_icrc_unless_the_peer_needs_none() {
    for accepts in [false, true] {
        let mut setups = [SHARED; 2];
        (setups[0].peer_accepts_partial, setups[1].accepts_partial) = (accepts, accepts);
        let frames = frames(setups, true);
        // Only packets that acknowledge have the longest headers.
        let longest = frames.iter().filter(|frame| is_rdma(frame)).map(Vec::len).max().unwrap();
        assert!((9010..=9014).contains(&longest), "{longest} bytes");
        for frame in &frames {
            let Some(packet) = rdma_packet(frame) else { continue };
            // The first machine sends to the second one.
            let has_icrc = frame[5] == 2 && !accepts;
            assert_eq!(roce::icrc_ok(packet), has_icrc);
            assert_eq!(packet.ends_with(&[0; roce::ICRC]), !has_icrc);
        }
    }
}

#[test]
fn a_packet_without_icrc_is_refused_over_other_links() {
    let setup = Setup { accepts_partial: false, ..SHARED };
    let mut link =
        Link::of([SHARED, Setup { peer_accepts_partial: false, ..setup }], [data(5000), Vec::new()]);
    // The first machine leaves the ICRC out although the second one does not accept that.
    link.run(|_| 1);
    let [_, server] = counters(&link.world);
    assert!(server.refused_icrc > 0 && server.placed_bytes == 0, "{server:?}");
    assert_eq!(link.transports()[0], ("tcp", Some("the peer does not answer over RDMA")));
}

#[test]
fn only_whole_packets_of_connections_are_read_in_place() {
    let mut link = Link::of([SHARED; 2], [data(20_000), Vec::new()]);
    link.run(|_| 1);
    let Link { world, client, .. } = &mut link;
    world.machines[0].write(*client, &[7; 8936]);
    world.machines[0].serve(world.now);
    let frame = world.machines[0].sent.lock().unwrap().pop_front().unwrap();
    assert!(is_rdma(&frame) && frame.len() > 8900, "{} bytes", frame.len());
    let stack = &mut world.machines[1].stack;
    // SAFETY: the frame is a slice.
    let mut reads = |frame: &[u8]| unsafe { stack.on_frame_in_place(world.now, frame.as_ptr(), frame.len()) };
    // Of another host, protocol, port, length or queue pair, or with an ICRC.
    let last = frame.len() - 1;
    for damaged in [0, 12, 14, 16, 20, 23, 26, 30, 36, 38, BTH + 5, last - 3, last] {
        let mut frame = frame.clone();
        frame[damaged] ^= 0x10;
        assert!(!reads(&frame), "byte {damaged}");
    }
    for len in [0, 1, 13, 14, 33, 34, 41, 42, 53, 54, 69, 70, 74, 128, last] {
        assert!(!reads(&frame[..len]), "{len} bytes");
    }
    assert!(reads(&[&frame[..], &[0; 3]].concat()), "padding is allowed");
    assert_eq!(link.world.machines[1].read(link.server.unwrap()), [7; 8936]);
}

/// Sends 4 bytes back and forth. Returns the number of frames.
fn frames_of_round_trips(rdma: bool, round_trips: usize) -> usize {
    let mut link = Link::of([Setup { rdma, ..SHARED }; 2], [vec![1; 4], vec![2; 4]]);
    link.run(|_| 1);
    let server = link.server.unwrap();
    (0..100).for_each(|_| link.world.step(&mut |_| 1));
    let mut frames = 0;
    let mut count = |_: &mut Vec<u8>| {
        frames += 1;
        1
    };
    for _ in 0..round_trips {
        for (from, key) in [(0, link.client), (1, server)] {
            assert_eq!(link.world.machines[from].write(key, &[3; 4]), 4);
            link.world.step(&mut count);
            let other = [server, link.client][from];
            assert_eq!(link.world.machines[1 - from].read(other), [3; 4]);
        }
    }
    frames
}

#[test]
fn a_round_trip_takes_two_packets() {
    let (tcp, rdma) = (frames_of_round_trips(false, 1000), frames_of_round_trips(true, 1000));
    println!("frames of 1000 round trips: TCP {tcp}, RDMA {rdma}");
    // New memory information is due after some thousand bytes.
    assert!((2000..=2010).contains(&rdma) && rdma <= tcp + 10, "TCP {tcp}, RDMA {rdma}");
}

#[test]
fn bulk_data_takes_about_as_many_packets_as_by_tcp() {
    let count = |rdma: bool| {
        let mut link = Link::of([Setup { rdma, ..SHARED }; 2], [data(8_000_000), Vec::new()]);
        let mut frames = [0, 0];
        link.run(|frame| {
            frames[usize::from(frame[5] == 1)] += 1;
            1
        });
        frames
    };
    let (tcp, rdma) = (count(false), count(true));
    println!("frames of 8 MB, and of their acknowledgments: TCP {tcp:?}, RDMA {rdma:?}");
    // A packet ends at the end of the range that it may write.
    assert!(rdma[0] <= tcp[0] + tcp[0] / 20 && rdma[1] <= tcp[1] + 10, "TCP {tcp:?}, RDMA {rdma:?}");
}

/// Returns the number of frames of a connection with a short request and a short response.
fn frames_of_a_short_connection(rdma: bool) -> usize {
    let mut link = Link::of([Setup { rdma, ..SHARED }; 2], [vec![1; 100], Vec::new()]);
    let mut frames = 0;
    let mut count = |_: &mut Vec<u8>| {
        frames += 1;
        1
    };
    link.run(&mut count);
    let server = link.server.unwrap();
    assert_eq!(link.world.machines[1].write(server, &[2; 100]), 100);
    link.step(&mut count);
    link.step(&mut count);
    assert_eq!(link.received, [vec![2; 100], vec![1; 100]]);
    link.close(count);
    frames
}

#[test]
fn a_short_connection_takes_at_most_three_packets_more_than_by_tcp() {
    // The client's memory information, the end of the handshake apart from the request, and an acknowledgment of the response
    // before the FIN.
    let (tcp, rdma) = (frames_of_a_short_connection(false), frames_of_a_short_connection(true));
    println!("frames of a short connection: TCP {tcp}, RDMA {rdma}");
    assert!(rdma <= tcp + 3, "TCP {tcp}, RDMA {rdma}");
}
