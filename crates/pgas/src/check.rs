//! Checks every operation of a transport and compares every result. `inlane ntb check` runs these checks on
//! both sides of a bridge. Tests run them on the twin.

use crate::error::{Error, Result};
use crate::transport::{Operation, Transport};
use crate::world::{Compare, Signal, World};

fn expect(what: &str, holds: bool) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::invalid(what, "the result is wrong; do not trust this path")),
    }
}

/// Runs puts, signals, gets, atomics and reductions between all PEs, `rounds` times. All PEs must call it.
///
/// # Errors
/// [`Error::Invalid`] with the first wrong result; errors of the transport.
pub fn run<T: Transport>(world: &World<T>, rounds: u32) -> Result<()> {
    let (me, pes) = (world.me(), world.pes());
    let (right, left) = ((me + 1) % pes, (me + pes - 1) % pes);
    let words = 20_000usize;
    let data = world.array::<u32>(words)?;
    let flags = world.array::<u64>(4)?;
    let terms = world.array::<u32>(1000)?;
    let sums = world.array::<u32>(1000)?;
    for round in 0..rounds {
        let value = |pe: u32, index: usize| pe.wrapping_mul(0x9E37_79B1) ^ round << 20 ^ index as u32;
        let mine: Vec<u32> = (0..words).map(|index| value(me, index)).collect();
        let number = round as u64 + 1;
        world.put_signal(data, 0, &mine, (flags, 0, Signal::Set, number), right)?;
        world.wait_until(flags, 0, Compare::Ge, number)?;
        for index in 0..words {
            expect("a put with signal", world.load(data, index)? == value(left, index))?;
        }
        world.barrier_all()?;
        let mut back = vec![0u32; words];
        world.get(data, 0, &mut back, right)?;
        expect("a get", back == mine)?;
        for _ in 0..10 {
            world.fetch(Operation::Add, flags, 1, 1, 0, 0)?;
            world.put_signal(data, 0, &mine[..1], (flags, 2, Signal::Add, 1), right)?;
        }
        world.wait_until(flags, 2, Compare::Ge, 10 * number)?;
        world.barrier_all()?;
        let count = world.fetch(Operation::Fetch, flags, 1, 0, 0, 0)?;
        expect("an atomic at the owner", count == 10 * number * pes as u64)?;
        for index in 0..terms.len() {
            // SAFETY: the element lies in this PE's own copy of the array. Other PEs read the element only
            // during the sum below, which follows a barrier.
            unsafe { terms.as_ptr().add(index).write_volatile(me + index as u32) };
        }
        world.barrier_all()?;
        world.sum(world.all(), sums, terms)?;
        for index in 0..sums.len() {
            let expected = pes * index as u32 + pes * (pes - 1) / 2;
            expect("a sum", world.load(sums, index)? == expected)?;
        }
        world.barrier_all()?;
    }
    for array in [sums, terms, data] {
        world.release(array.as_ptr().cast())?;
    }
    world.release(flags.as_ptr().cast())
}
