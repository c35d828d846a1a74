//! The published table of stages, and the two sums that the publication calls predictions. The numbers are those of the test
//! bed `offload` of `inlane model`.

use super::result::{Identity, Published, PublishedStage};
use anyhow::Context;
use inlane_model::Case;
use inlane_model::file::{Chain, Quantity};
use inlane_offload::trace::Stage;

/// Returns the names in the test bed of the published stages that correspond to a stage. The published times of a protocol and
/// of the driver are for both sides, and stand at the sender's.
fn names(stage: Stage) -> &'static [&'static str] {
    match stage {
        Stage::HandOver => &["translation", "ioctl-send"],
        Stage::WakeUp => &["interrupts", "bottom-half", "wake-up"],
        Stage::SendProtocol => &["tcp", "rdma-packets"],
        Stage::DataMovement => &["dma-in"],
        Stage::SendPort => &["driver"],
        Stage::Placement => &["dma-out"],
        Stage::ReaderWakeUp => &["ioctl-receive"],
        // The table has one stage for both ports, and no cards that run TCP for an engine.
        _ => &[],
    }
}

/// Returns the chain that a case of the test bed predicts.
fn chain<'a>(cases: &'a [Case], published: &str) -> anyhow::Result<&'a Chain> {
    let case = cases.iter().find(|case| case.published.as_deref() == Some(published));
    match case.map(|case| (case, &case.quantity)) {
        Some((case, Some(Quantity::Chain(index)))) => Ok(&case.chains[*index]),
        _ => anyhow::bail!("the test bed offload has no chain for {published}"),
    }
}

/// Returns the published table.
///
/// # Errors
/// None in a released version, because a test reads the table.
pub fn published() -> anyhow::Result<Published> {
    let model = inlane_model::test_beds::test_bed("offload").context("the test bed offload")??;
    let (cases, results) = (model.cases(&[])?, model.published()?);
    let (engine, rdma) = (chain(&cases, "toe")?, chain(&cases, "rdma")?);
    let part = |chain: &Chain, stage| {
        let parts = chain.stages.iter().filter(|part| names(stage).contains(&part.name.as_str()));
        let sum: f64 = parts.map(|part| part.time * 1e9).sum();
        (sum > 0.0).then_some(sum)
    };
    let identity = |name: &str| -> anyhow::Result<Identity> {
        let (_, result) = results.iter().find(|(other, _)| other == name).context("a published result")?;
        let published_ns = result.value.context("a published value")? * 1e3;
        Ok(Identity { what: result.what.clone(), published_ns, sum_ns: chain(&cases, name)?.time * 1e9 })
    };
    Ok(Published {
        source: model.title().to_owned(),
        stages: (Stage::ALL.into_iter().filter(|stage| !stage.is_of_card()))
            .map(|stage| PublishedStage { stage, engine_ns: part(engine, stage), rdma_ns: part(rdma, stage) })
            .collect(),
        engine_ns: engine.time * 1e9,
        rdma_ns: rdma.time * 1e9,
        identities: vec![identity("kernel-module")?, identity("no-system")?],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_published_stage_has_one_place() {
        let published = published().unwrap();
        let sum =
            |of: fn(&PublishedStage) -> Option<f64>| published.stages.iter().filter_map(of).sum::<f64>();
        assert!(
            (sum(|stage| stage.engine_ns) - 533e3).abs() < 1.0 && (published.engine_ns - 533e3).abs() < 1.0
        );
        assert!((sum(|stage| stage.rdma_ns) - 267e3).abs() < 1.0 && (published.rdma_ns - 267e3).abs() < 1.0);
        let [module, system] = &published.identities[..] else { panic!() };
        assert_eq!((module.published_ns, system.published_ns), (406e3, 276e3));
        assert!(
            (module.sum_ns - 406e3).abs() < 500.0 && (system.sum_ns - 276e3).abs() < 500.0,
            "{published:?}"
        );
    }
}
