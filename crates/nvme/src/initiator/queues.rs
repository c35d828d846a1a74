//! The I/O queues of a session. Spreads commands over the queues, and waits for completions of all queues
//! together.

use super::connection::{Done, Submission};
use super::queue::sleep;
use super::{Association, Queue};
use crate::Result;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The longest time that [`Queues::progress`] blocks.
const TICK: Duration = Duration::from_millis(50);

/// The I/O queues of one controller. Commands go to the queues in turn. The target may serve each queue on
/// another core. Only one thread uses the queues.
#[derive(Debug)]
pub struct Queues {
    queues: Vec<Queue>,
    /// The index of the queue that gets the next command.
    next: usize,
    /// Completed commands that [`Queues::progress`] has found and [`Queues::next_done`] has not yet returned.
    done: VecDeque<Done>,
    /// How long [`Queues::progress`] polls the sockets before it sleeps.
    spin: Duration,
}

impl Queues {
    /// Connects up to `count` I/O queues: as many as the controller grants. With several queues,
    /// [`Queues::progress`] polls for `spin` before it sleeps.
    ///
    /// # Errors
    /// If the controller refuses a queue, or the connection fails.
    pub fn open(association: &mut Association, count: u16, spin: Duration) -> Result<Self> {
        Ok(Self { queues: association.open_queues(count)?, next: 0, done: VecDeque::new(), spin })
    }

    /// Returns the queues.
    pub fn all(&self) -> &[Queue] {
        &self.queues
    }

    /// Returns the number of commands that can be submitted now.
    pub fn available(&self) -> usize {
        self.queues.iter().map(|queue| queue.connection.available()).sum()
    }

    /// Returns the number of commands in flight.
    pub fn in_flight(&self) -> usize {
        self.done.len() + self.queues.iter().map(|queue| queue.connection.in_flight()).sum::<usize>()
    }

    /// Returns the most commands that can be in flight.
    pub fn depth(&self) -> usize {
        self.available() + self.queues.iter().map(|queue| queue.connection.in_flight()).sum::<usize>()
    }

    /// Queues a command on the next queue that can take it. [`Queues::progress`] sends it.
    ///
    /// # Errors
    /// Returns the submission if [`Queues::available`] is 0.
    pub fn submit(&mut self, mut submission: Submission) -> Result<(), Submission> {
        for _ in 0..self.queues.len() {
            let index = self.next;
            self.next = (index + 1) % self.queues.len();
            match self.queues[index].connection.submit(submission) {
                Ok(()) => return Ok(()),
                Err(back) => submission = back,
            }
        }
        Err(submission)
    }

    /// Removes and returns the next completed command, or `None` if no further command has completed.
    pub fn next_done(&mut self) -> Option<Done> {
        self.done
            .pop_front()
            .or_else(|| self.queues.iter_mut().find_map(|queue| queue.connection.next_done()))
    }

    /// Sends queued bytes and receives what has arrived. With `wait`, blocks for up to 50 ms until a command
    /// completes.
    ///
    /// # Errors
    /// The error of the first queue that failed; see [`Queue::progress`]. Then give all queues up.
    pub fn progress(&mut self, wait: bool) -> Result<()> {
        if let [queue] = &mut self.queues[..] {
            return queue.progress(wait);
        }
        let start = Instant::now();
        loop {
            for queue in &mut self.queues {
                queue.progress(false)?;
                self.done.extend(std::iter::from_fn(|| queue.connection.next_done()));
            }
            let elapsed = start.elapsed();
            if !wait || !self.done.is_empty() || elapsed >= TICK {
                return Ok(());
            }
            if elapsed < self.spin {
                std::hint::spin_loop();
            } else {
                self.sleep(TICK - elapsed);
            }
        }
    }

    /// Sleeps until a socket is ready, for at most `time`.
    pub fn sleep(&self, time: Duration) {
        sleep(&mut self.queues.iter().map(Queue::interest).collect::<Vec<_>>(), time);
    }

    /// Ends all queues. The commands in flight complete with
    /// [`crate::wire::command::Status::HOST_PATH_ERROR`].
    pub fn fail(&mut self) {
        self.queues.iter_mut().for_each(Queue::fail);
    }
}
