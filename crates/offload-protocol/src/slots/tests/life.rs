//! Checks with the model checker loom that the program and the engine never both take a kept pair.

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

/// A program reserves a kept pair to open a connection, and its end is withdrawn, while the engine gives the pair to an accepted one.
#[test]
fn model_a_kept_pair_goes_to_one_connection_only() {
    model(3, || {
        let word = Arc::new(Modelled::new(0));
        let life = Life(&*word);
        life.begin(6);
        assert!(
            !life.connect(7) && !life.ask() && life.accept(6) && !life.ask() && life.close() && !life.ask()
        );
        assert!(life.keep() && life.is_kept() && !life.connect(7));
        let [asked_for, ended] = [word.clone(), word.clone()];
        let asking = loom::thread::spawn(move || Life(&*asked_for).ask());
        let ending = loom::thread::spawn(move || Life(&*ended).end());
        let reused = life.reuse(7);
        let (asked, ended) = (asking.join().unwrap(), ending.join().unwrap());
        assert!(reused as u8 + asked as u8 + ended as u8 == 1, "{reused} {asked} {ended}");
        assert_eq!((life.is_asked(), life.connect(8)), (asked, asked));
        if asked {
            assert!(life.is_connecting() && !life.close() && !life.is_closed() && !life.withdraw());
            life.establish();
            assert!(life.close() && life.keep() && life.ask() && life.withdraw() && !life.connect(9));
        }
    });
}
