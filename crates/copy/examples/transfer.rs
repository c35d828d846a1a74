//! Makes one transfer and a stream of transfers over the cheapest path: `cargo run --example transfer --
//! gpu:0 gpu:1`. Without a GPU, use `twin:0 twin:1`.

use inlane_copy::{Endpoint, PathChoice, PathOptions, PathSelector, open};
use inlane_core::Result;
use inlane_core::mover::Mover;

const SIZE: usize = 1 << 20;

fn main() -> Result<()> {
    let name = |index, otherwise: &str| std::env::args().nth(index).unwrap_or_else(|| otherwise.into());
    let ends: [Endpoint; 2] = [name(1, "twin:0").parse()?, name(2, "twin:1").parse()?];
    let devices = open(&ends, &Default::default())?;
    let (from, to) = (&devices[0], &devices[1]);

    // ANCHOR: stream
    // Allocate memory before opening the path, because allocation waits for resident kernels of an open
    // path.
    let (source, destination) = (from.allocate(8 * SIZE)?, to.allocate(8 * SIZE)?);
    let options = PathOptions { largest: SIZE, ..PathOptions::default() };
    let mut selector = PathSelector::open(from, to, PathChoice::Auto, &options, None)?;
    println!("{}", selector.explain(SIZE as u64).reason);

    from.fill(&source, 42)?;
    selector.copy(&source.slice(0, SIZE)?, &destination.slice(0, SIZE)?)?;

    // A stream: submits eight transfers without waiting between them, then waits for all of them.
    for index in 0..8 {
        let offset = index * SIZE;
        selector.submit(&source.slice(offset, SIZE)?, &destination.slice(offset, SIZE)?)?;
    }
    selector.drain()?;
    selector.quiesce()?;
    // ANCHOR_END: stream
    println!("{} wrong bytes", to.count_wrong(&destination, 42)?);
    Ok(())
}
