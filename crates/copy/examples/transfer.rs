//! One transfer, and a stream of them, by whichever path costs least:
//! `cargo run --example transfer -- gpu:0 gpu:1` (without a GPU: `twin:0 twin:1`).

use inlane_copy::{Endpoint, PathChoice, PathOptions, PathSelector, open};
use inlane_core::Result;
use inlane_core::mover::Mover;

const SIZE: usize = 1 << 20;

fn main() -> Result<()> {
    let name = |index, otherwise: &str| std::env::args().nth(index).unwrap_or_else(|| otherwise.into());
    let ends: [Endpoint; 2] = [name(1, "twin:0").parse()?, name(2, "twin:1").parse()?];
    let devices = open(&ends, &Default::default())?;
    let (from, to) = (&devices[0], &devices[1]);

    // Memory first, then the route: a route may keep kernels running, which allocation would wait for.
    let (source, destination) = (from.allocate(8 * SIZE)?, to.allocate(8 * SIZE)?);
    let options = PathOptions { largest: SIZE, ..PathOptions::default() };
    let mut route = PathSelector::open(from, to, PathChoice::Auto, &options, None)?;
    println!("{}", route.explain(SIZE as u64).reason);

    // One transfer, waited for.
    from.fill(&source, 42)?;
    route.copy(&source.slice(0, SIZE)?, &destination.slice(0, SIZE)?)?;

    // A stream: eight in flight, one wait.
    for index in 0..8 {
        let offset = index * SIZE;
        route.submit(&source.slice(offset, SIZE)?, &destination.slice(offset, SIZE)?)?;
    }
    route.drain()?;
    route.quiesce()?;
    println!("{} wrong bytes", to.count_wrong(&destination, 42)?);
    Ok(())
}
