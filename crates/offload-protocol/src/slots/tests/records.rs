//! Checks the counts of waiting connections with the model checker loom.

use super::*;

/// The counts of a process, and the pair of a listener.
struct Listening {
    sent: Modelled,
    received: Modelled,
    pair: Mutex<usize>,
}

impl Listening {
    fn new() -> Arc<Self> {
        Arc::new(Self { sent: Modelled::new(0), received: Modelled::new(0), pair: Mutex::new(0) })
    }

    fn records(&self) -> Records<'_, Modelled> {
        Records { sent: &self.sent, received: &self.received, tag: 7 }
    }

    /// Sends a record as the engine does, or fails to. If `early` is false, counts it only behind that, which is wrong.
    fn send(&self, fails: bool, early: bool) {
        if early {
            self.records().note_sending();
        }
        *self.pair.lock().unwrap() += usize::from(!fails);
        match (early, fails) {
            (true, true) => self.records().note_unsent(),
            (false, false) => self.records().note_sending(),
            _ => {}
        }
    }

    /// Receives a record as the library does. Returns false if there is none.
    fn receive(&self) -> bool {
        let mut pair = self.pair.lock().unwrap();
        let found = *pair > 0;
        *pair -= usize::from(found);
        drop(pair);
        found && self.records().note_received(7)
    }
}

/// The program finds that no connection waits only if that is so.
fn finds_each_connection(early: bool) {
    model(3, move || {
        let listening = Listening::new();
        let engine = {
            let listening = listening.clone();
            loom::thread::spawn(move || {
                listening.send(false, early);
                listening.send(true, early);
                listening.send(false, early);
            })
        };
        let mut accepted = 0;
        for _ in 0..2 {
            let waiting = *listening.pair.lock().unwrap();
            assert!(waiting == 0 || !listening.records().is_empty(), "a connection is hidden");
            accepted += usize::from(listening.receive());
        }
        engine.join().unwrap();
        while listening.receive() {
            accepted += 1;
        }
        assert!(accepted == 2 && listening.records().is_empty());
    });
}

#[test]
fn model_no_connection_that_waits_is_hidden() {
    finds_each_connection(true);
}

#[test]
#[should_panic(expected = "a connection is hidden")]
fn model_finds_the_error_of_an_engine_that_counts_too_late() {
    finds_each_connection(false);
}

#[test]
fn records_of_other_areas_are_not_counted() {
    let (sent, received) = (AtomicU64::new(1), AtomicU64::new(0));
    let records = Records { sent: &sent, received: &received, tag: 7 };
    assert!(!records.note_received(0) && !records.note_received(8) && !records.is_empty());
    assert!(records.note_received(7) && records.is_empty());
    let untagged = Records { sent: &sent, received: &received, tag: 0 };
    assert!(!untagged.note_received(0));
}
