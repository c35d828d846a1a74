//! Two connections over a model of an unreliable network: every byte arrives, and nothing stalls.

mod network;

use inlane_tcp::*;
use network::*;

fn pair(config: &[Config; 2], link: Link, seed: u64, bytes: [u64; 2]) -> Network {
    let secrets = Secrets::new([seed as u8; 16]);
    let mut random = Random(seed);
    let flow =
        Flow { local: ([10, 0, 0, 1], random.next() as u16).into(), remote: ([10, 0, 0, 2], 80).into() };
    let reverse = Flow { local: flow.remote, remote: flow.local };
    // The handshake runs through a listener without faults; the faults begin behind it.
    let mut a = Connection::connect(0, &config[0], secrets.start(0, &flow)).unwrap();
    let mut listener = Listener::<()>::new(&config[1], Secrets::new([9; 16]), 4).unwrap();
    let header = |transmit: Transmit| transmit.header;
    let received = |header| Segment { header, payload: &[], ecn: Ecn::NotEct };
    let syn = header(a.poll_transmit(0).unwrap());
    let Verdict::Reply(syn_ack) = listener.on_segment(link.delay, &reverse, &received(syn), None) else {
        panic!()
    };
    let mut ring = Ring::new(1);
    assert!(a.on_segment(2 * link.delay, &received(syn_ack), &mut ring).contains(Events::CONNECTED));
    let ack = header(a.poll_transmit(2 * link.delay).unwrap());
    let now = 3 * link.delay;
    let Verdict::Established(handshake) = listener.on_segment(now, &reverse, &received(ack), None) else {
        panic!()
    };
    let b = Connection::accept(now, &config[1], &handshake).unwrap();
    let host = |connection, n: usize| {
        let config: &Config = &config[n];
        let (send, receive) = (config.send_capacity as usize, config.receive_capacity as usize);
        Host::new(connection, send, receive, seed + n as u64, seed + 1 - n as u64, bytes[n])
    };
    let mut network = Network { hosts: [host(a, 0), host(b, 1)], wire: Wire::new(link, seed), now };
    network.start();
    network
}

fn finished(network: &Network) -> bool {
    (0..2).all(|n| {
        network.hosts[n].consumed == network.hosts[1 - n].to_write
            && network.hosts[n].connection.peer_closed()
    })
}

#[test]
fn a_perfect_network_carries_both_directions() {
    let config = [Config::default(), Config::default()];
    let mut network = pair(&config, Link::default(), 1, [3_000_000, 2_000_000]);
    while !finished(&network) && network.step() {}
    assert!(finished(&network));
    for host in &network.hosts {
        assert_eq!(host.connection.counters().retransmitted_bytes, 0);
    }
    assert!(network.now < 100 * MILLISECOND, "{} ms", network.now / MILLISECOND);
}

#[test]
fn losses_are_repaired() {
    for seed in 0..200 {
        let link = Link { loss: 0.05, ..Link::default() };
        let config = Config { receive_capacity: 1 << (10 + seed % 8), ..Config::default() };
        let mut network = pair(&[config.clone(), config], link, seed, [200_000, 50_000]);
        let mut steps = 0;
        while !finished(&network) && network.step() {
            steps += 1;
            assert!(steps < 1_000_000, "livelock, seed {seed}");
        }
        assert!(
            finished(&network),
            "seed {seed}: {:?}",
            network.hosts.map(|host| (host.consumed, host.connection))
        );
    }
}
