//! Gates: locks that keep threads out of a section of code. The gate of a port keeps threads out of its
//! driver until the port is started, and while it closes. [`Pause`] makes threads wait at every gate. A port
//! uses it to take back the buffers that its driver lost.
//!
//! A thread sets a flag with a plain store while it is inside. The closing thread runs a memory barrier on
//! all threads (membarrier(2)), so passing a gate needs no fence.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

const CLOSED: u8 = 0;
const OPEN: u8 = 1;
/// The state of a paused gate: threads wait in [`Gate::pass`] until the gate is opened or closed.
const PAUSED: u8 = 2;

/// All gates. Locked during a [`Pause`], so that no gate is created or opened meanwhile.
static GATES: Mutex<Vec<Weak<Gate>>> = Mutex::new(Vec::new());

/// Guards code that threads run by [`Gate::pass`], such as the calls of a port's driver. A closed gate
/// refuses threads. A paused gate makes them wait. Closing or pausing blocks until all threads have left the
/// code.
#[derive(Default)]
pub(crate) struct Gate {
    state: AtomicU8,
    marks: Mutex<Vec<Weak<Mark>>>,
}

/// A thread's flag at a gate. It is set while the thread is inside the gate. It has its own cache lines,
/// because each burst writes it twice.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Mark {
    inside: AtomicBool,
}

impl Gate {
    /// Creates a closed gate. [`Self::open`] opens it.
    pub(crate) fn new() -> Arc<Self> {
        let gate = Arc::<Self>::default();
        let mut gates = lock(&GATES);
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(Arc::downgrade(&gate));
        gate
    }

    /// Creates a [`Mark`], the flag by which a thread passes the gate ([`Self::pass`]). One thread at a time
    /// may use the mark.
    pub(crate) fn mark(&self) -> Arc<Mark> {
        let mark = Arc::<Mark>::default();
        let mut marks = lock(&self.marks);
        marks.retain(|mark| mark.strong_count() > 0);
        marks.push(Arc::downgrade(&mark));
        mark
    }

    /// Runs `work` if the gate is open. Waits while it is paused. Returns `None` if it is closed.
    #[inline(always)]
    pub(crate) fn pass<T>(&self, mark: &Mark, work: impl FnOnce() -> T) -> Option<T> {
        loop {
            // Store the flag before loading the state. The fence keeps this order in the compiler, and
            // [`barrier_on_all_threads`] in every CPU.
            mark.inside.store(true, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            let state = self.state.load(Ordering::Acquire);
            if state == OPEN {
                let outcome = work();
                mark.inside.store(false, Ordering::Release);
                return Some(outcome);
            }
            mark.inside.store(false, Ordering::Release);
            if state == CLOSED {
                return None;
            }
            self.wait_while_paused();
        }
    }

    #[cold]
    fn wait_while_paused(&self) {
        while self.state.load(Ordering::Acquire) == PAUSED {
            std::thread::yield_now();
        }
    }

    /// Opens the gate.
    pub(crate) fn open(&self) {
        // Take the lock that [`Pause`] also holds. The gate then opens only after a pause has ended.
        let _gates = lock(&GATES);
        self.state.store(OPEN, Ordering::SeqCst);
    }

    /// Closes the gate, so that no thread enters any more. Blocks until every thread inside has left.
    pub(crate) fn close(&self) {
        self.state.store(CLOSED, Ordering::SeqCst);
        barrier_on_all_threads();
        self.wait_until_empty();
    }

    /// Waits until no thread is inside the gate. Before the call, the caller changes the state and calls
    /// [`barrier_on_all_threads`]. This function sees all flags that were set before this barrier. A thread
    /// that sets its flag later reads the new state, and stays out.
    fn wait_until_empty(&self) {
        for mark in lock(&self.marks).iter().filter_map(Weak::upgrade) {
            while mark.inside.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
    }
}

/// Holds all open gates paused: threads wait in [`Gate::pass`]. Dropping this value opens the gates again.
pub(crate) struct Pause {
    gates: MutexGuard<'static, Vec<Weak<Gate>>>,
}

impl Pause {
    /// Pauses every open gate, and waits until no thread is inside one. The calling thread must not be inside
    /// a gate.
    pub(crate) fn begin() -> Self {
        let pause = Self { gates: lock(&GATES) };
        pause.change(OPEN, PAUSED);
        barrier_on_all_threads();
        pause.gates.iter().filter_map(Weak::upgrade).for_each(|gate| gate.wait_until_empty());
        pause
    }

    /// Changes the state of every gate from `from` to `to`. Gates in another state stay as they are.
    fn change(&self, from: u8, to: u8) {
        for gate in self.gates.iter().filter_map(Weak::upgrade) {
            let _ = gate.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.change(PAUSED, OPEN);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Executes a full memory barrier on every running thread of this process.
fn barrier_on_all_threads() {
    const GLOBAL: i32 = 1;
    const PRIVATE_EXPEDITED: i32 = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
    // SAFETY: the call gets no pointer. The kernel refuses unknown commands.
    unsafe {
        if libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0
            && libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) == 0
        {
            return;
        }
        if libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) == 0 {
            return;
        }
    }
    // Kernels before Linux 4.3 lack membarrier(2). Sleep instead, longer than a store stays in a CPU's store
    // buffer, so that all flags are visible afterwards.
    std::sync::atomic::fence(Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(50));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_closed_gate_lets_nobody_in() {
        let gate = Gate::new();
        let mark = gate.mark();
        assert_eq!(gate.pass(&mark, || 1), None, "the gate is not open yet");
        gate.open();
        assert_eq!(gate.pass(&mark, || 1), Some(1));
        gate.close();
        assert_eq!(gate.pass(&mark, || 1), None);
    }

    #[test]
    fn nobody_is_inside_during_a_pause() {
        let gate = Gate::new();
        gate.open();
        // One counter for each thread. A counter is odd while its thread is inside the gate. While the gate
        // is paused, all counters must be even.
        let inside: Arc<[AtomicU64; 3]> = Arc::default();
        let threads: Vec<_> = (0..3)
            .map(|index| {
                let (gate, inside, mark) = (gate.clone(), inside.clone(), gate.mark());
                std::thread::spawn(move || {
                    let own = &inside[index];
                    let twice =
                        || (0..2).for_each(|_| own.store(own.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
                    while gate.pass(&mark, twice).is_some() {}
                })
            })
            .collect();
        let look = || inside.each_ref().map(|count| count.load(Ordering::Relaxed));
        for _ in 0..200 {
            let pause = Pause::begin();
            let before = look();
            assert!(before.iter().all(|count| count % 2 == 0), "{before:?}");
            std::thread::yield_now();
            assert_eq!(look(), before, "a thread entered the paused gate");
            drop(pause);
        }
        let before = look();
        while look().iter().zip(before).any(|(now, before)| *now == before) {
            std::thread::yield_now();
        }
        gate.close();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
