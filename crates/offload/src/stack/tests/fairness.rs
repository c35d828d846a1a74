//! Many streams that share the receive queue of one machine.

use super::*;

/// How often the receiver takes frames from its queue, in nanoseconds.
const ROUND: u64 = 250_000;
/// The most frames that it takes each time: 64,000 a second.
const FRAMES: usize = 16;
/// The length of the queue. Frames that find it full are lost.
const QUEUE: usize = 1024;

/// Sends on `count` connections for `rounds` rounds of the receiver. Its program reads everything at once. Returns the received
/// bytes of each connection, the least first.
fn share(count: usize, rounds: usize) -> Vec<u64> {
    let mut world = World::of([Setup { buffer: 1 << 20, ..Setup::default() }; 2]);
    let [sender, receiver] = &mut world.machines;
    receiver.listen(80);
    let remote = SocketAddr::new(receiver.address(), 80);
    let mut now = world.now;
    let mut clients = Vec::new();
    let mut queue = VecDeque::new();
    let mut bytes: HashMap<Key, u64> = HashMap::new();
    let data = vec![7; 256 << 10];
    for _ in 0..rounds {
        now += ROUND;
        // The backlog of the listener is short, so the connections begin one after the other.
        if clients.len() < count {
            clients.push(sender.connect(now, remote));
        }
        // A full queue would also delay the handshakes.
        for &client in clients.iter().filter(|_| receiver.accepted.len() == count) {
            let stream = sender.stack.sockets.get(client).and_then(Socket::stream);
            if stream.is_some_and(|stream| stream.room(1 << 20) >= data.len() as u64) {
                sender.write(client, &data);
            }
        }
        sender.serve(now);
        for frame in sender.sent.lock().unwrap().drain(..) {
            if queue.len() < QUEUE {
                queue.push_back(frame);
            }
        }
        for frame in queue.drain(..queue.len().min(FRAMES)) {
            receiver.receive(now, &frame);
        }
        for key in receiver.accepted.clone() {
            *bytes.entry(key).or_default() += receiver.read(key).len() as u64;
        }
        receiver.serve(now);
        let answers: Vec<_> = receiver.sent.lock().unwrap().drain(..).collect();
        answers.iter().for_each(|frame| sender.receive(now, frame));
    }
    let mut bytes: Vec<u64> =
        receiver.accepted.iter().map(|key| bytes.get(key).copied().unwrap_or(0)).collect();
    bytes.sort_unstable();
    bytes
}

#[test]
fn no_stream_is_left_out_where_many_share_a_receive_queue() {
    const STREAMS: usize = 128;
    // Two seconds. With windows that together exceed the queue, a stream waited for its retransmission timer all the time.
    let bytes = share(STREAMS, 8_000);
    assert_eq!(bytes.len(), STREAMS);
    assert!(bytes[0] > bytes[STREAMS / 2] / 20, "{bytes:?}");
}
