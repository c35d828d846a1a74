//! Shows that segments cause no allocation once a connection has warmed up.

use inlane_tcp::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

struct Nowhere;

impl ReceiveBuffer for Nowhere {
    fn write(&mut self, _: u64, _: &[u8]) {}
}

fn transfer(now: &mut u64, a: &mut Connection, b: &mut Connection, bytes: u64) {
    let payload = [0; 1 << 16];
    let (end, mut written, mut count) = (a.acknowledged() + bytes, a.acknowledged(), 0);
    while a.acknowledged() < end {
        written = written.max((a.acknowledged() + (1 << 20)).min(end));
        a.set_written(written).unwrap();
        *now += 100_000;
        for forward in [true, false] {
            let (sender, receiver) = if forward { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            sender.on_timer(*now);
            while let Some(transmit) = sender.poll_transmit(*now) {
                for (header, range) in transmit.segments() {
                    count += 1;
                    if count % 50 != 0 {
                        let payload = &payload[..(range.end - range.start) as usize];
                        receiver.on_segment(
                            *now,
                            &Segment { header, payload, ecn: Ecn::NotEct },
                            &mut Nowhere,
                        );
                    }
                }
            }
            let received = b.received();
            b.set_consumed(received).unwrap();
        }
    }
}

#[test]
fn segments_cause_no_allocation() {
    let config = Config::default();
    let secrets = Secrets::new([1; 16]);
    let flow = Flow { local: ([10, 0, 0, 1], 1).into(), remote: ([10, 0, 0, 2], 2).into() };
    let mut listener = Listener::new(&config, secrets.clone(), 1).unwrap();
    let mut a = Connection::connect(0, &config, secrets.start(0, &flow)).unwrap();
    let bare = |header| Segment { header, payload: &[], ecn: Ecn::NotEct };
    let syn = a.poll_transmit(0).unwrap().header;
    let Verdict::Reply(reply) = listener.on_segment(0, &flow, &bare(syn), None) else { panic!() };
    a.on_segment(0, &bare(reply), &mut Nowhere);
    let ack = a.poll_transmit(0).unwrap().header;
    let Verdict::Established(handshake) = listener.on_segment(0, &flow, &bare(ack), None) else { panic!() };
    let mut b = Connection::accept(0, &config, &handshake).unwrap();
    let mut now = 1_000_000;
    transfer(&mut now, &mut a, &mut b, 20_000_000);
    let before = ALLOCATIONS.get();
    let recoveries = a.counters().recoveries;
    transfer(&mut now, &mut a, &mut b, 20_000_000);
    assert!(a.counters().recoveries > recoveries, "the transfer includes losses");
    assert_eq!(ALLOCATIONS.get(), before);
}
