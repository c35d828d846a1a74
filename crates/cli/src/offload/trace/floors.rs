//! Measures the floors of the stages with cards, between the cores of the measured engines, cards and programs.

use super::Cores;
use super::engines::{network, to_card};
use super::result::{ModeResult, StageFloor};
use inlane_core::clock::Clock;
use inlane_offload::floors::{Floor, in_memory, of_port, of_shared_lines};
use inlane_offload::trace::{Hop, Stage};
use std::path::Path;

/// The most messages of each floor.
const MOST: usize = 10_000;

/// Adds the floors to the stages of `mode`, which was measured between `cores`. `folder` is for sockets.
///
/// # Errors
/// If a port cannot be opened, or a thread is not run.
pub fn add_to(
    mode: &mut ModeResult,
    clock: &Clock,
    cores: Option<Cores>,
    folder: &Path,
) -> anyhow::Result<()> {
    for Floor { stage, measured, times } in measure(clock, cores, folder, (mode.messages as usize).min(MOST))?
    {
        if let Some(found) = mode.stages.iter_mut().find(|it| it.stage == stage) {
            let ratio = Some(found.times.median_ns / times.median_ns).filter(|ratio| ratio.is_finite());
            found.floor = Some(StageFloor { measured, times, ratio });
        }
    }
    Ok(())
}

fn measure(clock: &Clock, cores: Option<Cores>, folder: &Path, count: usize) -> anyhow::Result<Vec<Floor>> {
    let with_cards = cores.and_then(|cores| Some((cores.ends, cores.cards?)));
    let [to_engine, from_engine] = [0, 2].map(|at| cores.map(|cores| [cores.ends[at], cores.ends[at + 1]]));
    let links = [
        (
            Hop::ToCard,
            [to_card(folder, 0, "client")?, to_card(folder, 0, "server")?],
            with_cards.map(|(ends, cards)| [ends[1], cards[0]]),
        ),
        (Hop::Network, [network(folder, 0)?, network(folder, 1)?], with_cards.map(|(_, cards)| cards)),
        (
            Hop::FromCard,
            [to_card(folder, 1, "server")?, to_card(folder, 1, "client")?],
            with_cards.map(|(ends, cards)| [cards[1], ends[2]]),
        ),
    ];
    let mut floors = of_shared_lines(clock, [Stage::HandOver, Stage::WakeUp], to_engine, count)?;
    for (hop, ports, cores) in links {
        floors.extend(of_port(clock, hop, &ports, cores, count)?);
    }
    floors.extend(in_memory(clock, with_cards.map(|(_, cards)| cards[0]), count)?);
    floors.extend(of_shared_lines(clock, [Stage::Placement, Stage::ReaderWakeUp], from_engine, count)?);
    Ok(floors)
}
