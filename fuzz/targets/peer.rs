//! A hostile peer. It completes the handshake over the twin. Then it writes arbitrary requests and words into
//! its inbox in the memory of the honest side. The honest side must answer or refuse each request.

use inlane_ntb::device::Ntb;
use inlane_ntb::fault::Faults;
use inlane_ntb::handshake::protocol::{Handshake, ROW, ScratchpadRow};
use inlane_ntb::handshake::{self, Offer};
use inlane_ntb::twin::{Hub, Twin};
use inlane_ntb::window::Window;
use inlane_pgas::transport::Transport;
use inlane_pgas::transport::windows::layout::{Layout, MAGIC};
use inlane_pgas::transport::windows::{Settings, Windows};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

const BYTES: usize = 2 << 20;

struct Pair {
    honest: Windows,
    hostile: Twin,
    window: Window,
    layout: Layout,
    tag: u64,
    /// The number of the next request that the hostile peer writes.
    next: Mutex<u64>,
    _hub: Hub,
}

fn connect() -> Pair {
    let hub = Hub::new(2, BYTES as u64).expect("a fabric");
    let attach = |port| Twin::attach(hub.admit(port).expect("a port"), &Faults::default()).expect("attached");
    let (a, hostile) = (attach(0), attach(1));
    let honest = std::thread::spawn(|| {
        let settings = Settings { request_timeout: Some(Duration::from_secs(1)), ..Settings::default() };
        Windows::connect(Arc::new(a), BYTES, settings).expect("connected")
    });
    let layout = Layout::new(2, BYTES).expect("a layout");
    let inbound = hostile.inbound().slice(0, BYTES).expect("inside");
    for (index, word) in [MAGIC, 2, layout.symmetric_bytes() as u64].into_iter().enumerate() {
        // SAFETY: the header's words lie in this peer's own memory.
        unsafe { inbound.as_ptr().cast::<u64>().add(index).write_volatile(word) };
    }
    hostile.link_enable(true);
    let offer = Offer { inbound: &inbound, epoch: 7, timeout: Duration::from_secs(10) };
    let tag = handshake::connect(&hostile, 0, &offer, &Faults::default()).expect("connected").tag();
    let window = hostile.peer_window(0, 0).expect("a window");
    let honest = honest.join().expect("connected");
    Pair { honest, hostile, window, layout, tag: u64::from(tag), next: Mutex::new(1), _hub: hub }
}

pub fn run(data: &[u8]) {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    let pair = PAIR.get_or_init(connect);
    let mut words = data.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("8 bytes")));

    // Decode arbitrary bytes as the row of scratchpads that a peer writes. Also let a handshake read this
    // row.
    let row: [u32; ROW] =
        std::array::from_fn(|n| data.get(n * 4).map_or(0, |byte| u32::from(*byte) << (n * 3)));
    let mut side = Handshake::new(1, 512, 512, true);
    let _ = (ScratchpadRow::decode(&row), side.read(&row));

    let (from, to) = (pair.layout.notifications(1), pair.layout.landing());
    if let (Some(at), Some(value)) = (words.next(), words.next()) {
        let offset = from + (at as usize % ((to - from) / 8)) * 8;
        pair.window.store_word(offset, value).expect("inside");
    }
    let mut next = pair.next.lock().expect("one thread");
    while let Some(head) = words.next() {
        let sequence = pair.tag << 32 | (*next & 0xFFFF_FFFF);
        let at = pair.layout.request(1, *next);
        // Give half of the requests a known operation and width, because otherwise nearly all requests would
        // be refused.
        let head = if head & 1 == 0 { (head >> 1) & 0x0C_07_03 } else { head };
        pair.window.store_word(at + 8, head).expect("inside");
        for index in 2..7 {
            pair.window.store_word(at + index * 8, words.next().unwrap_or(0)).expect("inside");
        }
        pair.window.store_word(at + 56, sequence).expect("inside");
        pair.window.store_word(at, sequence).expect("inside");
        pair.honest.progress();
        // Wait for the answer. Either `progress` on this thread writes the answer, or the service thread
        // does, after the doorbell has woken it.
        let answer = pair.hostile.inbound().address() as usize + pair.layout.reply(0, *next) + 24;
        let mut polls = 0;
        // SAFETY: `answer` is the address of an aligned word in this peer's own inbound memory, which stays
        // mapped.
        while unsafe { (answer as *const u64).read_volatile() } != sequence {
            pair.hostile.peer_doorbell_set(0, 1).expect("a peer");
            pair.honest.progress();
            polls += 1;
            assert!(polls < 1_000_000, "request {next} is not answered");
        }
        *next += 1;
    }
}
