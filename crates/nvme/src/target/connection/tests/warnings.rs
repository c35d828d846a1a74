//! Tests how many warnings hosts can cause.

use super::*;
use std::sync::Mutex;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata};

/// Keeps the text of each warning.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text += &format!("{value:?}");
        });
        self.0.lock().unwrap().push(text);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn hosts_cause_at_most_twenty_warnings_in_a_second() {
    let (subsystem, warnings) = (subsystem(&["memory:1M"], |_| {}), Warnings::default());
    let in_a_second = |violations: usize| {
        for _ in 0..violations {
            let mut host = Host::new(&subsystem);
            host.send(&[0xAA; 200]);
            assert!(matches!(host.connection.end(), Some(End::Violation(_))));
        }
        subsystem.end_of_second();
        std::mem::take(&mut *warnings.0.lock().unwrap())
    };
    tracing::subscriber::with_default(warnings.clone(), || {
        assert_eq!(in_a_second(20).len(), 20, "nothing is left out");
        let logged = in_a_second(45);
        assert_eq!(logged.len(), 21);
        assert!(logged[..20].iter().all(|text| text.ends_with("the connection is closed")), "{logged:?}");
        assert!(logged[20].starts_with("25 more warnings about hosts were left out"), "{logged:?}");
        assert_eq!(in_a_second(1).len(), 1, "the next second has warnings of its own");
    });
}
