//! Checks who decides about a kept pair, with the model checker loom.

use super::*;

/// The program withdraws its kept end, for example before a fork, while the engine keeps the pair and gives it to another connection.
/// Either the program may close its end, or a connection has the pair.
#[test]
fn model_either_the_program_ends_a_kept_pair_or_a_connection_gets_it() {
    model(3, || {
        let word = Arc::new(Modelled::new(0));
        let life = Life(&*word);
        life.begin(6);
        assert!(!life.is_accepted() && !life.close(), "a connection is closed only after it was accepted");
        assert!(!life.accept(5) && life.accept(6), "a record of another connection is refused");
        assert!(life.is_accepted() && !life.is_closed() && !life.keep() && !life.end());
        assert!(life.close() && life.is_closed());
        let program = {
            let word = word.clone();
            loom::thread::spawn(move || Life(&*word).end())
        };
        let reused = life.keep() && life.reuse(7);
        let ended = program.join().unwrap();
        assert!(reused != ended || !reused && Life(&*word).end(), "reused: {reused}, ended: {ended}");
    });
}
