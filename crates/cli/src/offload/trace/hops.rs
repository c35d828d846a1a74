//! Measures how long it takes to wake a thread that sleeps in the kernel. Between programs and engines that do not poll, a message
//! waits for three such wake-ups. Each is measured alone.

use super::result::WakeUps;
use anyhow::{Context, anyhow};
use inlane_core::clock::Clock;
use inlane_offload::trace::Times;
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The number of wake-ups before those that are measured.
const WARM_UP: usize = 200;
/// The number of measured wake-ups.
const COUNT: usize = 2000;
/// The longest time for which a thread waits for the other one.
const LIMIT: Duration = Duration::from_secs(20);

/// Measures the wake-ups between the cores of the sender, its engine, the receiver's engine and the receiver.
///
/// # Errors
/// If the system refuses a socket or a thread, or a thread is not woken.
pub fn measure(cores: Option<[usize; 4]>) -> anyhow::Result<WakeUps> {
    let between = |from: usize| cores.map(|cores| [cores[from], cores[from + 1]]);
    let (mut program, engine) = UnixStream::pair()?;
    let (mut writer, mut reader) = UnixStream::pair()?;
    let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
    reader.set_read_timeout(Some(LIMIT))?;
    let ring = || rustix::io::write(&bell, &1u64.to_ne_bytes()).map(drop).map_err(io::Error::from);
    let (at_engine, at_bell) = (Sleeper::new(&engine)?, Sleeper::new(&bell)?);
    Ok(WakeUps {
        program_to_engine_ns: median(between(0), || at_engine.sleep(4), || program.write_all(&[0; 4]))?,
        engine_to_engine_ns: median(between(1), || at_bell.sleep(8), ring)?,
        engine_to_program_ns: median(
            between(2),
            || reader.read_exact(&mut [0; 4]),
            || writer.write_all(&[0; 4]),
        )?,
    })
}

/// A descriptor, and an epoll instance in which a thread sleeps until the descriptor is readable.
struct Sleeper<'a> {
    fd: std::os::fd::BorrowedFd<'a>,
    epoll: OwnedFd,
}

impl<'a> Sleeper<'a> {
    fn new(fd: &'a impl AsFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { fd: fd.as_fd(), epoll })
    }

    /// Sleeps until the descriptor is readable, and reads up to `len` bytes.
    fn sleep(&self, len: usize) -> io::Result<()> {
        let limit = rustix::event::Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
        let mut events = Vec::with_capacity(1);
        let woken = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&limit))?;
        if woken == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        rustix::io::read(self.fd, &mut [0; 8][..len])?;
        Ok(())
    }
}

/// Returns the median time from the beginning of `wake` in one thread until `sleep` has returned in another. The threads
/// are pinned to `cores`: the waking one, then the sleeping one.
fn median(
    cores: Option<[usize; 2]>,
    mut sleep: impl FnMut() -> io::Result<()> + Send,
    mut wake: impl FnMut() -> io::Result<()> + Send,
) -> anyhow::Result<f64> {
    let clock = Clock::new();
    let (mut answer, answered) = UnixStream::pair()?;
    let bind = |index: usize| cores.map_or(Ok(()), |cores| inlane_core::cores::bind(&[cores[index]]));
    let (woken, calls) = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| -> io::Result<Vec<u64>> {
            bind(1)?;
            let times = (0..WARM_UP + COUNT).map(|_| {
                sleep()?;
                let woken = clock.raw();
                answer.write_all(&[0])?;
                Ok(woken)
            });
            times.collect()
        });
        let waker = scope.spawn(|| -> io::Result<Vec<u64>> {
            bind(0)?;
            let times = (0..WARM_UP + COUNT).map(|_| {
                let called = clock.raw();
                wake()?;
                // This sleeps, too, so the other thread sleeps again before it is woken.
                let mut waiting = [PollFd::new(&answered, PollFlags::IN)];
                let limit = rustix::event::Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
                match poll(&mut waiting, Some(&limit))? {
                    0 => Err(io::ErrorKind::TimedOut.into()),
                    _ => (&answered).read_exact(&mut [0]).map(|()| called),
                }
            });
            times.collect()
        });
        (sleeper.join(), waker.join())
    });
    let panicked = |_| anyhow!("a thread has panicked");
    let (woken, calls) = (woken.map_err(panicked)?, calls.map_err(panicked)?);
    let (woken, calls) = (woken.context("measuring wake-ups")?, calls.context("measuring wake-ups")?);
    let ticks = woken.iter().zip(&calls).skip(WARM_UP).map(|(woken, called)| woken.saturating_sub(*called));
    Ok(Times::of(&clock, ticks.collect()).context("no wake-ups")?.median_ns)
}
