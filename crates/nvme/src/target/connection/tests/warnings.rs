//! Tests how many warnings hosts can cause.

#[path = "../../../../../core/tests/events/mod.rs"]
mod events;

use super::*;
use events::Events;
use tracing::Level;

#[test]
fn hosts_cause_at_most_twenty_warnings_in_a_second() {
    let (subsystem, events) = (subsystem(&["memory:1M"], |_| {}), Events::default());
    let in_a_second = |violations: usize| {
        for _ in 0..violations {
            let mut host = Host::new(&subsystem);
            host.send(&[0xAA; 200]);
            assert!(matches!(host.connection.end(), Some(End::Violation(_))));
        }
        subsystem.end_of_second();
        let warnings = events.take().into_iter().filter(|(level, _)| *level == Level::WARN);
        warnings.map(|(_, text)| text).collect::<Vec<_>>()
    };
    tracing::subscriber::with_default(events.clone(), || {
        assert_eq!(in_a_second(20).len(), 20, "nothing is left out");
        let logged = in_a_second(45);
        assert_eq!(logged.len(), 21);
        assert!(logged[..20].iter().all(|text| text.ends_with("the connection is closed")), "{logged:?}");
        assert!(logged[20].starts_with("25 more warnings about hosts were left out"), "{logged:?}");
        assert_eq!(in_a_second(1).len(), 1, "the next second has warnings of its own");
    });
}
