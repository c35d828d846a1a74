//! Measures the floors of the stages with cards, between the cores of the measured engines, cards and programs.

use super::Cores;
use super::engines::{network, to_card};
use super::result::{ModeResult, StageFloor};
use inlane_core::clock::Clock;
use inlane_offload::floors::{Floor, Measured, in_memory, of_port, of_shared_lines};
use inlane_offload::trace::{Hop, Stage};
use std::path::Path;

/// The most messages of each floor.
const MOST: usize = 10_000;

/// Adds the floors to the stages and passages of `mode`, which was measured between `cores`. `folder` is for sockets.
///
/// # Errors
/// If a port cannot be opened, or a thread is not run.
pub fn add_to(
    mode: &mut ModeResult,
    clock: &Clock,
    cores: Option<Cores>,
    folder: &Path,
) -> anyhow::Result<()> {
    let count = (mode.messages as usize).min(MOST);
    let mut add = |floors: Vec<Floor>| {
        for Floor { stage, measured, times } in floors {
            let found = mode.stages.iter_mut().filter(|it| it.stage == stage);
            found.for_each(|it| it.floor = Some(StageFloor::new(measured, times, it.times.median_ns)));
        }
    };
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
    add(of_shared_lines(clock, [Stage::HandOver, Stage::WakeUp], to_engine, count)?);
    add(in_memory(clock, with_cards.map(|(_, cards)| cards[0]), count)?);
    add(of_shared_lines(clock, [Stage::Placement, Stage::ReaderWakeUp], from_engine, count)?);
    for (hop, ports, cores) in links {
        let floors = of_port(clock, hop, &ports, cores, count)?;
        add(floors.stages);
        let Some(times) = floors.passage else { continue };
        let found = mode.passages.iter_mut().filter(|it| it.link == hop);
        found.for_each(|it| it.floor = Some(StageFloor::new(Measured::PortAlone, times, it.times.median_ns)));
    }
    Ok(())
}
