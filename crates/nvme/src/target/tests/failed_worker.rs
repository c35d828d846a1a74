//! Tests of what a worker thread that ends by a panic leaves behind.

use super::*;
use crate::target::controller::Reach;
use crate::target::inbox::{ConnectionId, Inbox, Message, Note};
use std::sync::Arc;

#[test]
fn memory_that_the_kernel_may_still_use_is_not_freed() {
    for panic in [false, true] {
        let target = start("memory:1M", Limits::default());
        let subsystem = target.subsystem().clone();
        // The worker starts the next receive before it handles another message, so the panic finds the receive in flight.
        let mut stream = initialize(&target).unwrap();
        if panic {
            target.panic();
            assert!(is_closed(&mut stream), "the socket stays open");
        }
        assert_eq!(target.stop().is_err(), panic);
        // Each connection that still exists refers to the subsystem.
        assert_eq!(Arc::strong_count(&subsystem), 1 + usize::from(panic), "panic: {panic}");
    }
}

#[test]
fn flushes_that_wait_for_a_failed_worker_fail() {
    let target = start("memory:1M", Limits::default());
    let inbox = Arc::new(Inbox::new().unwrap());
    let waiting = || (Reach { inbox: inbox.clone(), connection: ConnectionId(5) }, 3);
    let group = &target.subsystem().flushes[0];
    assert!(group.begin(waiting), "no flush runs");
    assert!(!group.begin(waiting), "a flush runs");
    assert!(inbox.take().is_empty());
    target.panic();
    let start = Instant::now();
    let messages = loop {
        let messages = inbox.take();
        if !messages.is_empty() {
            break messages;
        }
        assert!(start.elapsed() < PATIENCE, "the flush still waits");
        std::thread::sleep(Duration::from_millis(5));
    };
    let failed = Message::To(ConnectionId(5), Note::Flush(3, Some(-libc::EIO)));
    assert_eq!(format!("{messages:?}"), format!("{:?}", [failed]));
    assert!(group.begin(waiting), "later flushes do not wait for the failed worker");
}
