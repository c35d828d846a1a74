//! Sessions with known figures, for tests.

use crate::observation::{Level, LoadRate, Loaded, Measured, Observation, Phase};
use inlane_core::load::{Resource, Use, UseSource};

pub const GIGA: f64 = 1e9;

pub fn loaded(name: &str, uses: &[(Resource, f64)], antagonist_of: Option<Resource>) -> Loaded {
    let of = |(resource, per_byte): &(Resource, f64)| Use {
        resource: resource.clone(),
        per_byte: Some(*per_byte),
        source: UseSource::Computed,
    };
    Loaded {
        name: name.into(),
        uses: uses.iter().map(of).collect(),
        asked: None,
        fed: false,
        in_flight: None,
        antagonist_of,
        cores: Vec::new(),
        threads: 1,
    }
}

/// Makes blocks of `phases`, which have GB/s for each load. The figures of the blocks differ by up to 1 %.
pub fn measured<const N: usize>(loads: Vec<Loaded>, phases: &[(Phase, [f64; N])]) -> Measured {
    let mut observations = Vec::new();
    for block in 0..6 {
        for (number, (phase, rates)) in phases.iter().enumerate() {
            let jitter =
                |load: usize| 1.0 + ((block * 31 + number * 17 + load * 7) % 5) as f64 * 0.005 - 0.01;
            let rate = |(load, rate): (usize, &f64)| {
                let runs = phase.level(load, 2) != Level::Parked;
                let bytes = if runs { rate * GIGA * jitter(load) } else { 0.0 };
                LoadRate {
                    operations_per_second: bytes / 65536.0,
                    bytes_per_second: bytes,
                    busy: Some(0.05),
                    blocked: Some(0.9),
                    on_processor: Some(0.99),
                    queued: Some(0.01),
                    ..LoadRate::default()
                }
            };
            observations.push(Observation {
                phase: *phase,
                block,
                at_ns: 0,
                duration_ns: 250_000_000,
                loads: rates.iter().enumerate().map(rate).collect(),
                signals: Default::default(),
                void: None,
            });
        }
    }
    Measured { loads, users: 2, observations, ..Measured::default() }
}

/// Returns the session of a copy to a GPU beside packets that cross the same link, as measured on an H100. Two copies of the
/// same copy engine do not share it: the one that has it keeps it.
pub fn on_a_gpu() -> Measured {
    let to = Resource::LinkToDevice("gpu:0".into());
    let from = Resource::LinkFromDevice("gpu:0".into());
    let (memory, engine) = (Resource::HostMemory, Resource::CopyEngine("gpu:0".into()));
    let gpu = Resource::DeviceMemory("gpu:0".into());
    let copy = [(to.clone(), 1.0), (memory.clone(), 1.0), (gpu.clone(), 1.0), (engine.clone(), 1.0)];
    let loads = vec![
        loaded("dma", &copy, None),
        loaded("forward", &[(to.clone(), 1.0159), (memory.clone(), 1.0159), (gpu.clone(), 1.0)], None),
        loaded("memory-antagonist", &[(memory.clone(), 2.0)], Some(memory.clone())),
        loaded("copies-to-gpu:0", &copy, Some(to)),
        loaded("copies-from-gpu:0", &[(from.clone(), 1.0), (memory, 1.0), (engine, 1.0)], Some(from)),
    ];
    let beside = |load, antagonist, share| Phase::Beside { load, antagonist, share };
    let phases = [
        (Phase::Alone { load: 0 }, [53.3, 0.0, 0.0, 0.0, 0.0]),
        (Phase::Alone { load: 0 }, [53.0, 0.0, 0.0, 0.0, 0.0]),
        (Phase::Alone { load: 1 }, [0.0, 49.9, 0.0, 0.0, 0.0]),
        (Phase::Alone { load: 1 }, [0.0, 49.7, 0.0, 0.0, 0.0]),
        (Phase::Alone { load: 2 }, [0.0, 0.0, 46.0, 0.0, 0.0]),
        (Phase::Alone { load: 3 }, [0.0, 0.0, 0.0, 53.6, 0.0]),
        (Phase::Alone { load: 4 }, [0.0, 0.0, 0.0, 0.0, 52.5]),
        (Phase::Together, [19.0, 31.6, 0.0, 0.0, 0.0]),
        (Phase::Together, [19.2, 31.8, 0.0, 0.0, 0.0]),
        (Phase::Throttled { load: 0, share: 0.85 }, [16.2, 34.0, 0.0, 0.0, 0.0]),
        (Phase::Throttled { load: 1, share: 0.85 }, [24.9, 27.1, 0.0, 0.0, 0.0]),
        (Phase::ThrottledAlone { load: 0, share: 0.85 }, [45.8, 0.0, 0.0, 0.0, 0.0]),
        (Phase::ThrottledAlone { load: 1, share: 0.85 }, [0.0, 42.7, 0.0, 0.0, 0.0]),
        (Phase::TogetherBeside { antagonist: 2, share: 0.25 }, [18.9, 31.5, 11.5, 0.0, 0.0]),
        (Phase::TogetherBeside { antagonist: 3, share: 0.25 }, [8.0, 29.5, 0.0, 13.4, 0.0]),
        (beside(0, 2, 0.25), [53.1, 0.0, 11.5, 0.0, 0.0]),
        (beside(1, 2, 0.25), [0.0, 49.6, 11.5, 0.0, 0.0]),
        (beside(0, 2, 0.5), [52.8, 0.0, 23.0, 0.0, 0.0]),
        (beside(0, 2, 1.0), [45.0, 0.0, 41.1, 0.0, 0.0]),
        (beside(1, 2, 0.5), [0.0, 48.3, 23.0, 0.0, 0.0]),
        (beside(1, 2, 1.0), [0.0, 44.0, 40.0, 0.0, 0.0]),
        (beside(0, 3, 0.5), [52.0, 0.0, 0.0, 0.0, 0.0]),
        (beside(0, 3, 1.0), [0.0, 0.0, 0.0, 53.9, 0.0]),
        (beside(1, 3, 0.5), [0.0, 32.4, 0.0, 19.6, 0.0]),
        (beside(1, 3, 1.0), [0.0, 32.4, 0.0, 19.6, 0.0]),
        (beside(1, 4, 0.5), [0.0, 44.9, 0.0, 0.0, 21.2]),
        (beside(1, 4, 1.0), [0.0, 45.5, 0.0, 0.0, 19.6]),
    ];
    measured(loads, &phases)
}
