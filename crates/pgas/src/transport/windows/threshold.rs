//! Finds the smallest size for which a mover copies at least as fast as stores. Makes one measurement on the
//! memory window that the mover will use.

use crate::error::Result;
use inlane_core::completion::CompletionMode;
use inlane_core::mover::Mover;
use inlane_core::region::Region;
use inlane_ntb::window::Window;
use std::time::Instant;

/// The number of times that each size is measured. The fastest measurement is used.
const TRIES: usize = 5;
/// The smallest size tried. Below it, a mover's fixed cost makes stores faster.
const SMALLEST: usize = 4096;

fn fastest(mut body: impl FnMut() -> Result<()>) -> Result<u128> {
    let mut least = u128::MAX;
    for _ in 0..TRIES {
        let start = Instant::now();
        body()?;
        least = least.min(start.elapsed().as_nanos());
    }
    Ok(least)
}

/// Returns the size in bytes from which `mover` is at least as fast as stores. Measures both by writing to
/// the memory window `window`, into `room` bytes from offset `at` on. Returns `usize::MAX` if the mover
/// cannot reach the window or is slower at the largest size.
///
/// # Errors
/// Errors of the mover and of the window.
pub fn calibrate(mover: &mut dyn Mover, window: &Window, at: usize, room: usize) -> Result<usize> {
    let source = Region::host(room)?;
    if !mover.reaches(&source, window.region()) {
        return Ok(usize::MAX);
    }
    let sizes = std::iter::successors(Some(SMALLEST), |size| Some(size * 2)).take_while(|size| *size <= room);
    let mut from = usize::MAX;
    for size in sizes {
        let (part, destination) = (source.slice(0, size)?, window.region().slice(at, size)?);
        // SAFETY: the source has `size` bytes.
        let stores = fastest(|| Ok(unsafe { window.store_from(at, part.as_ptr(), size) }?))?;
        let moved = fastest(|| {
            let ticket = mover.submit(&part, &destination)?;
            Ok(mover.wait(ticket, CompletionMode::Poll)?)
        })?;
        // The mover must win at all larger sizes. So a size at which stores take less time resets the search.
        from = if moved > stores { usize::MAX } else { from.min(size) };
    }
    Ok(from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::mover::Ticket;
    use inlane_ntb::device::Ordering;
    use std::time::Duration;

    /// A mover that copies nothing and takes the given time for any size. The second field is true if the
    /// mover reaches the window.
    struct Fixed(Duration, bool);

    impl Mover for Fixed {
        fn name(&self) -> String {
            "fixed".into()
        }
        fn reaches(&self, _: &Region, _: &Region) -> bool {
            self.1
        }
        fn submit(&mut self, _: &Region, _: &Region) -> inlane_core::error::Result<Ticket> {
            std::thread::sleep(self.0);
            Ok(Ticket(1))
        }
        fn done(&mut self) -> inlane_core::error::Result<Ticket> {
            Ok(Ticket(1))
        }
        fn wait(&mut self, _: Ticket, _: CompletionMode) -> inlane_core::error::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn calibration_finds_the_faster_one() {
        let window = Window::new(1, Region::host(1 << 20).unwrap(), Ordering::Coherent, None);
        let at_once = calibrate(&mut Fixed(Duration::ZERO, true), &window, 0, 1 << 20).unwrap();
        assert!(at_once < usize::MAX, "a mover that takes no time wins at the largest size");
        let slow = calibrate(&mut Fixed(Duration::from_millis(20), true), &window, 0, 1 << 20).unwrap();
        assert_eq!(slow, usize::MAX);
        let elsewhere = calibrate(&mut Fixed(Duration::ZERO, false), &window, 0, 1 << 20).unwrap();
        assert_eq!(elsewhere, usize::MAX);
    }
}
