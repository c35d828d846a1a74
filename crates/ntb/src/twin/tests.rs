//! Tests of windows, doorbells, links and scratchpads between two twin ports of one process.

use super::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn pair(bytes: u64) -> (Hub, Twin, Twin) {
    let hub = Hub::new(2, bytes).unwrap();
    let clean = Faults::default();
    let a = Twin::attach(hub.admit(0).unwrap(), &clean).unwrap();
    let b = Twin::attach(hub.admit(1).unwrap(), &clean).unwrap();
    (hub, a, b)
}

fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

#[test]
fn a_window_leads_to_its_translation_and_nowhere_else() {
    let (_hub, a, b) = pair(1 << 20);
    assert!(a.peer_window(1, 0).is_err(), "no translation yet");
    let whole = b.inbound().clone();
    assert!(b.set_translation(0, 0, &whole.slice(100, 4096).unwrap()).is_err(), "misaligned");
    assert!(b.set_translation(0, 0, &whole.slice(4096, 100).unwrap()).is_err(), "odd size");
    assert!(b.set_translation(0, 0, &Region::host(4096).unwrap()).is_err(), "not inbound memory");
    assert!(b.set_translation(0, 1, &whole).is_err(), "no such window");
    b.set_translation(0, 0, &whole.slice(8192, 8192).unwrap()).unwrap();
    let window = a.peer_window(1, 0).unwrap();
    window.store(16, b"through the bridge").unwrap();
    window.flush();
    let mut seen = [0u8; 18];
    // SAFETY: the 18 bytes lie inside the inbound memory.
    unsafe { std::ptr::copy(whole.as_ptr().add(8192 + 16), seen.as_mut_ptr(), 18) };
    assert_eq!(&seen, b"through the bridge");
    for (offset, length) in [(8192, 1), (8191, 2), (usize::MAX, 2), (0, 8193)] {
        assert!(window.store(offset, &vec![0; length]).is_err(), "{offset} {length}");
    }
    assert!(window.store_word(8188, 1).is_err());
    assert!(window.store_word(4, 1).is_err(), "words are aligned");
    b.clear_translation(0, 0);
    assert!(a.peer_window(1, 0).is_err());
    assert!(a.peer_window(7, 0).is_err());
}

#[test]
fn hostile_translations_are_refused() {
    let (_hub, a, b) = pair(1 << 20);
    let translation = &b.inner.registers().translations[0];
    for (offset, bytes) in [(0, u64::MAX), (u64::MAX - 4095, 8192), (1 << 20, 4096), (1, 4096), (0, 4097)] {
        translation.offset.store(offset, Ordering::Release);
        translation.bytes.store(bytes, Ordering::Release);
        assert!(a.peer_window(1, 0).is_err(), "{offset:#x} {bytes:#x}");
    }
}

#[test]
fn doorbells_coalesce_and_respect_the_mask() {
    let (_hub, a, b) = pair(4096);
    let event = b.event(Event::Doorbell(0)).unwrap();
    a.peer_doorbell_set(1, 0b101).unwrap();
    assert!(readable(event));
    assert_eq!(b.doorbell_read(), 0b101);
    rustix::io::read(event, &mut [0u8; 8]).unwrap();
    a.peer_doorbell_set(1, 0b001).unwrap();
    assert!(!readable(event), "the bit was not cleared: no new edge");
    b.doorbell_clear(0b001);
    a.peer_doorbell_set(1, 0b001).unwrap();
    assert!(readable(event));
    rustix::io::read(event, &mut [0u8; 8]).unwrap();
    b.doorbell_mask_set(0b1000);
    a.peer_doorbell_set(1, 0b1000).unwrap();
    assert!(!readable(event), "masked");
    b.doorbell_mask_clear(0b1000);
    assert!(!readable(event), "unmasking does not ring");
    assert_eq!(b.doorbell_read() & 0b1000, 0b1000, "scanning again finds it");
    a.peer_doorbell_set(1, 1 << 40).unwrap();
    assert!(!readable(event), "another vector");
    assert!(readable(b.event(Event::Doorbell(1)).unwrap()));
    assert!(b.event(Event::Doorbell(2)).is_err());
    assert!(a.peer_doorbell_set(2, 1).is_err());
}

#[test]
fn a_storm_of_doorbells_is_one_event() {
    let (_hub, a, b) = pair(4096);
    for _ in 0..100_000 {
        a.peer_doorbell_set(1, 1).unwrap();
    }
    let mut count = [0u8; 8];
    rustix::io::read(b.event(Event::Doorbell(0)).unwrap(), &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
}

#[test]
fn links_go_up_and_down_with_both_sides() {
    let (hub, a, b) = pair(4096);
    assert!(!a.link(1).up);
    a.link_enable(true);
    assert!(!a.link(1).up && !a.link(9).up);
    b.link_enable(true);
    let up = a.link(1);
    assert!(up.up && b.link(0).up);
    assert!(readable(a.event(Event::Link).unwrap()));
    let events = hub.events().unwrap();
    drop(b);
    assert!(!a.link(1).up);
    assert_ne!(a.link(1).generation, up.generation);
    let seen: Vec<_> = std::iter::from_fn(|| {
        events.recv_timeout(Duration::from_secs(60)).ok().filter(|e| e.1 != PortEvent::Gone)
    })
    .collect();
    assert!(seen.contains(&(1, PortEvent::Attached)));
    let again = Twin::attach(hub.admit(1).unwrap(), &Faults::default()).unwrap();
    again.link_enable(true);
    assert!(a.link(1).up);
}

#[test]
fn scratchpads_survive_their_writer() {
    let (hub, a, b) = pair(4096);
    a.peer_scratchpad_write(1, 5, 77).unwrap();
    assert!(a.peer_scratchpad_write(1, SCRATCHPADS, 1).is_err());
    assert_eq!(b.scratchpad_read(5), 77);
    assert_eq!(b.scratchpad_read(u32::MAX), 0);
    drop((a, b));
    let b = Twin::attach(hub.admit(1).unwrap(), &Faults::default()).unwrap();
    assert_eq!(b.scratchpad_read(5), 77, "stale, as on hardware");
}

#[test]
fn no_descriptor_is_in_flight_before_a_process_asks() {
    let hub = Hub::new(1, 4096).unwrap();
    let socket = hub.admit(0).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert!(!readable(socket.as_fd()), "the system limits a user to about a thousand descriptors in flight");
    Twin::attach(socket, &Faults::default()).unwrap();
}

#[test]
fn a_socket_without_a_hub_is_refused() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    for message in [&b""[..], b"hello", &[0xFF; 24], &[0xFF; 64]] {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::send(&ours, message, SendFlags::empty()).unwrap();
        drop(ours);
        assert!(Twin::attach(theirs, &Faults::default()).is_err());
    }
    assert!(Hub::new(0, 4096).is_err() && Hub::new(MAX_PORTS + 1, 4096).is_err() && Hub::new(2, 0).is_err());
}

#[test]
fn a_hub_that_does_not_answer_is_an_error() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (port, _silent) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let error = Twin::attach(port, &Faults::default()).err().unwrap();
    assert!(error.to_string().contains("no hub of this release"), "{error}");
}

extern "C" fn interrupt(_signal: i32) {}

#[test]
fn signals_neither_end_nor_prolong_the_wait_for_the_hub() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (port, _silent) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    // SAFETY: the handler does nothing, and no other test uses this signal.
    unsafe { libc::signal(libc::SIGUSR1, interrupt as *const () as libc::sighandler_t) };
    let (id, ids) = std::sync::mpsc::channel();
    let attaching = std::thread::spawn(move || {
        // SAFETY: the call only returns the calling thread's handle.
        id.send(unsafe { libc::pthread_self() }).unwrap();
        Twin::attach(port, &Faults::default()).map(drop)
    });
    let thread = ids.recv().unwrap();
    let begun = std::time::Instant::now();
    while !attaching.is_finished() {
        assert!(begun.elapsed() < Duration::from_secs(120), "signals prolong the wait");
        // SAFETY: the thread was neither joined nor detached, so its handle is valid.
        unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
        std::thread::sleep(Duration::from_millis(2));
    }
    let error = attaching.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("no hub of this release"), "{error}");
}

#[test]
fn the_hub_asks_all_processes_to_end() {
    let (hub, a, b) = pair(1 << 20);
    hub.end_all(7);
    assert_eq!((a.wait_for_end(), b.wait_for_end()), (Some(7), Some(7)));
    // Shut down this end of the socket. The hub's thread then closes its own end, so no hub is left that
    // could ask the port to end.
    rustix::net::shutdown(&a.inner.socket, rustix::net::Shutdown::Write).unwrap();
    assert_eq!(a.wait_for_end(), None);
}

#[test]
fn inbound_memory_is_aligned_and_can_be_mapped_again() {
    let (_hub, a, _b) = pair(1 << 20);
    assert_eq!(a.inbound().address() as usize % (1 << 20), 0);
    let place = Region::host(3 * 4096).unwrap();
    let address = (place.address() as usize).next_multiple_of(4096) as *mut u8;
    // SAFETY: the page is in `place`. Only this test uses `place`.
    unsafe {
        a.map_inbound_at(8192, 4096, address).unwrap();
        address.write_volatile(77);
        assert_eq!(a.inbound().as_ptr().add(8192).read_volatile(), 77);
        assert!(a.map_inbound_at(1 << 20, 4096, address).is_err(), "outside");
    }
    // One page of `place` is now shared memory. Leak `place`, so that the allocator never uses this page
    // again.
    std::mem::forget(place);
}
