//! A packet function that does not return.

use super::*;
use crate::config::{CpuMethod, Executor, Route};
use inlane_function::{FunctionPacket, OwnFunction, RustFunction, Verdict};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Ends the endless function, which a test in one process must do.
static RELEASED: AtomicBool = AtomicBool::new(false);
static REPORTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Endless(u32);

impl RustFunction for Endless {
    fn process(&mut self, _: &mut FunctionPacket<'_>) -> Verdict {
        self.0 += 1;
        while self.0 == 500 && !RELEASED.load(SeqCst) {
            std::hint::spin_loop();
        }
        Verdict::Forward
    }
}

#[test]
fn a_function_that_never_returns_is_reported_once() {
    for method in [CpuMethod::Single, CpuMethod::Split { workers: 1 }] {
        RELEASED.store(false, SeqCst);
        let mut config = Config::new(Route::one_way("gen:64,packets=2000", ["null"]).unwrap());
        config.cores = Some(Vec::new());
        config.function = OwnFunction::new("endless", || Endless(0)).into();
        config.executor = Executor::Cpu(method);
        config.per_pipeline.watchdog = Duration::from_millis(300);
        let control = Control::default();
        control.set_on_stuck(|error| {
            REPORTED.lock().unwrap().push(error.to_string());
            RELEASED.store(true, SeqCst);
        });
        let outcome = run(&config, &control, &mut |_, _| ()).unwrap();
        assert_eq!(outcome.result.tx.packets, 2000);
        let reported = std::mem::take(&mut *REPORTED.lock().unwrap());
        assert_eq!(reported.len(), 1, "{method:?}: {reported:?}");
        assert!(reported[0].contains("packet function endless is stuck on the CPU"), "{reported:?}");
        assert!(reported[0].ends_with("or raise watchdog"), "{reported:?}");
    }
}
