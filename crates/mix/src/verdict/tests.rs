use super::*;
use crate::observation::Level;
use crate::test_sessions::{loaded, measured, on_a_gpu};

#[test]
fn loads_on_one_link_are_limited_by_it_although_copy_engines_starve_each_other() {
    let measured = on_a_gpu();
    let judgement = judge(&measured);
    let link = Bottleneck::Resource(Resource::LinkToDevice("gpu:0".into()));
    let finding = |load: usize| {
        let mut together = judgement.verdicts.iter().filter(|verdict| verdict.when == When::Together);
        together.find(|verdict| verdict.load == load).map(|verdict| &verdict.finding)
    };
    let Some(Finding::Named(named)) = finding(0) else { panic!("{:?}", finding(0)) };
    assert_eq!(named.bottleneck, link);
    // The packets lost less beside the antagonist than a fair share, because the copy paid for it. That leaves it open.
    let Some(Finding::NotDetermined(open)) = finding(1) else { panic!("{:?}", finding(1)) };
    assert!(open.candidates.iter().any(|candidate| candidate.bottleneck == link));
}

/// Returns a session in which a computation and reads of memory share a core. The rate of the reads varies by 40 % between blocks
/// and phases, as on a shared host. The time that their threads run does not.
fn on_one_core() -> Measured {
    let core = [(Resource::Core(0), 1e-9)];
    let mut loads = vec![
        loaded("one", &core, None),
        loaded("other", &[(Resource::Core(0), 1e-9), (Resource::HostMemory, 1.0)], None),
        loaded("memory-antagonist", &[(Resource::HostMemory, 1.0)], Some(Resource::HostMemory)),
        loaded("cpu-on-0", &core, Some(Resource::Core(0))),
    ];
    loads.iter_mut().for_each(|load| load.cores = vec![0]);
    loads[1].uses[0].per_byte = None;
    let beside = |antagonist| Phase::TogetherBeside { antagonist, share: 0.25 };
    let phases = [
        (Phase::Alone { load: 0 }, [1.0, 0.0, 0.0, 0.0]),
        (Phase::Alone { load: 1 }, [0.0, 8.0, 0.0, 0.0]),
        (Phase::Alone { load: 2 }, [0.0, 0.0, 20.0, 0.0]),
        (Phase::Alone { load: 3 }, [0.0, 0.0, 0.0, 1.0]),
        (Phase::Together, [0.5, 4.0, 0.0, 0.0]),
        (Phase::Throttled { load: 0, share: 0.85 }, [0.425, 4.6, 0.0, 0.0]),
        (beside(2), [0.5, 4.0, 5.0, 0.0]),
        (beside(3), [0.375, 3.0, 0.0, 0.25]),
    ];
    let mut measured = measured(loads, &phases);
    for (at, observation) in measured.observations.iter_mut().enumerate() {
        let time = [1.0, 8.0, f64::INFINITY, 1.0];
        let runs = (0..4).filter(|of| observation.phase.level(*of, 2) != Level::Parked && *of != 2).count();
        for (load, rate) in observation.loads.iter_mut().enumerate() {
            let on_processor = (rate.bytes_per_second / 1e9 / time[load]).min(1.0);
            (rate.on_processor, rate.queued) =
                (Some(on_processor), Some(if runs > 1 { 1.0 - on_processor } else { 0.0 }));
            (rate.busy, rate.blocked) = (Some(1.0), Some(0.0));
        }
        let noise = 1.0 + 0.2 * [1.0, -0.6, 0.3, -1.0, 0.7, 0.0, -0.3][at * 5 % 7];
        // It seems to lose 19 % beside a load that takes 25 % of the core.
        let noise = if observation.phase == beside(3) { 1.2 * noise } else { noise };
        observation.loads[1].bytes_per_second *= noise;
        observation.loads[1].operations_per_second *= noise;
    }
    measured
}

#[test]
fn the_time_of_threads_shows_a_shared_core_if_rates_vary_too_much() {
    let verdicts = judge(&on_one_core()).verdicts;
    let other = verdicts.iter().find(|verdict| verdict.load == 1 && verdict.when == When::Together).unwrap();
    let Finding::Named(named) = &other.finding else { panic!("{:#?}", other.finding) };
    assert_eq!(named.bottleneck, Bottleneck::Resource(Resource::Core(0)));
}
