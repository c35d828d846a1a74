use super::*;
use crate::observation::Measured;
use crate::test_sessions::{GIGA, loaded, measured, on_a_gpu};

/// Returns the predicted rates of all loads together, in GB/s.
fn together(measured: &Measured) -> Vec<f64> {
    let found = predict(&SoloRuns::of(measured)).unwrap();
    let mix = found.mixes.iter().find(|mix| mix.phase == Phase::Together).unwrap();
    mix.rates.iter().map(|of| of.rate / GIGA).collect()
}

#[test]
fn a_copy_that_starves_another_one_does_not_spoil_the_prediction() {
    let found = predict(&SoloRuns::of(&on_a_gpu())).unwrap();
    let [mix] = &found.mixes[..] else { panic!("{} mixes", found.mixes.len()) };
    let sum: f64 = mix.rates.iter().map(|of| of.rate).sum();
    assert!(
        (45.0 * GIGA..58.0 * GIGA).contains(&sum),
        "both share the link, so {sum} is at most what it carries"
    );
}

fn on_link(name: &str, resource: &Resource, by_engine: bool) -> crate::observation::Loaded {
    let mut uses = vec![(resource.clone(), 1.0)];
    if by_engine {
        uses.push((Resource::CopyEngine("gpu:0".into()), 1.0));
    }
    loaded(name, &uses, None)
}

fn antagonist(resource: &Resource, by_engine: bool) -> crate::observation::Loaded {
    let antagonist_of = Some(resource.clone());
    crate::observation::Loaded { antagonist_of, ..on_link("copies", resource, by_engine) }
}

/// Copies by the copy engine and packets that SMs pull, as measured on an H100, with the rates of the solo runs and ladders
/// only: alone, and beside copies as the other load's.
#[test]
fn the_sms_get_more_of_a_direction_than_the_copy_engine() {
    let to = Resource::LinkToDevice("gpu:0".into());
    let loads = vec![on_link("dma", &to, true), on_link("forward", &to, false), antagonist(&to, false)];
    let beside = |load, share| Phase::Beside { load, antagonist: 2, share };
    let phases = [
        (Phase::Alone { load: 0 }, [50.93, 0.0, 0.0]),
        (Phase::Alone { load: 1 }, [0.0, 49.6, 0.0]),
        (Phase::Alone { load: 2 }, [0.0, 0.0, 49.75]),
        (beside(0, 0.25), [38.57, 0.0, 12.4]),
        (beside(0, 0.5), [26.1, 0.0, 24.8]),
        (beside(0, 1.0), [20.53, 0.0, 30.83]),
        (beside(1, 0.25), [0.0, 37.32, 12.48]),
        (beside(1, 0.5), [0.0, 30.71, 19.43]),
        (beside(1, 1.0), [0.0, 30.66, 19.43]),
    ];
    let found = together(&measured(loads, &phases));
    // Measured together: 15.20 and 35.62.
    assert!((found[0] / 15.2 - 1.0).abs() < 0.06 && (found[1] / 35.62 - 1.0).abs() < 0.03, "{found:?}");
}

/// The same machine, with the copies turned round. The directions are separate, but not independent.
#[test]
fn opposite_directions_have_a_ceiling_together() {
    let to = Resource::LinkToDevice("gpu:0".into());
    let from = Resource::LinkFromDevice("gpu:0".into());
    let loads = vec![
        on_link("dma", &from, true),
        on_link("forward", &to, false),
        antagonist(&from, false),
        antagonist(&from, true),
    ];
    let beside = |load, antagonist, share| Phase::Beside { load, antagonist, share };
    let phases = [
        (Phase::Alone { load: 0 }, [53.76, 0.0, 0.0, 0.0]),
        (Phase::Alone { load: 1 }, [0.0, 49.99, 0.0, 0.0]),
        (Phase::Alone { load: 2 }, [0.0, 0.0, 51.76, 0.0]),
        (Phase::Alone { load: 3 }, [0.0, 0.0, 0.0, 54.28]),
        (beside(0, 2, 0.25), [40.45, 0.0, 12.9, 0.0]),
        (beside(0, 2, 0.5), [27.24, 0.0, 25.8, 0.0]),
        (beside(0, 2, 1.0), [7.96, 0.0, 44.73, 0.0]),
        (beside(1, 3, 0.25), [0.0, 45.39, 0.0, 13.4]),
        (beside(1, 3, 0.5), [0.0, 43.95, 0.0, 19.77]),
        (beside(1, 3, 1.0), [0.0, 43.76, 0.0, 19.44]),
    ];
    let found = predict(&SoloRuns::of(&measured(loads, &phases))).unwrap();
    let rates = &found.mixes[0].rates;
    // Measured together: 16.15 and 44.82. Without the ceiling, each would run as fast as alone.
    let errors = [rates[0].rate / GIGA / 16.15 - 1.0, rates[1].rate / GIGA / 44.82 - 1.0];
    assert!(errors[0].abs() < 0.25 && errors[1].abs() < 0.04, "{errors:?}");
    assert!(rates.iter().all(|of| of.limit == Some(Bottleneck::BothDirections("gpu:0".into()))), "{rates:?}");
}

/// Two loads that are bound by one core each get half of its time, however many bytes they move in it.
#[test]
fn a_core_is_divided_by_time_and_not_by_bytes() {
    let core = Resource::Core(0);
    let on_core = |name: &str, seconds: f64| loaded(name, &[(core.clone(), seconds / GIGA)], None);
    let mut cpu = on_core("cpu", 1.0 / 36.0);
    cpu.antagonist_of = Some(core.clone());
    let loads = vec![on_core("slow", 1.0), on_core("fast", 0.1), cpu];
    let beside = |load, share| Phase::Beside { load, antagonist: 2, share };
    let phases = [
        (Phase::Alone { load: 0 }, [1.0, 0.0, 0.0]),
        (Phase::Alone { load: 1 }, [0.0, 10.0, 0.0]),
        (Phase::Alone { load: 2 }, [0.0, 0.0, 36.0]),
        (beside(0, 0.5), [0.5, 0.0, 18.0]),
        (beside(0, 1.0), [0.5, 0.0, 18.0]),
        (beside(1, 0.5), [0.0, 5.0, 18.0]),
        (beside(1, 1.0), [0.0, 5.0, 18.0]),
    ];
    let found = together(&measured(loads, &phases));
    assert!((found[0] / 0.5 - 1.0).abs() < 0.05 && (found[1] / 5.0 - 1.0).abs() < 0.05, "{found:?}");
}

/// Two loads on a link in opposite directions. One is paced, so it takes less than the antagonist in whose place it stands.
#[test]
fn a_paced_load_leaves_the_opposite_direction_what_both_carry_together() {
    let to = Resource::LinkToDevice("gpu:0".into());
    let from = Resource::LinkFromDevice("gpu:0".into());
    let loads = vec![
        on_link("out", &from, false),
        on_link("paced", &to, false),
        antagonist(&to, false),
        antagonist(&from, false),
    ];
    let beside = |load, antagonist, share| Phase::Beside { load, antagonist, share };
    let phases = [
        (Phase::Alone { load: 0 }, [50.0, 0.0, 0.0, 0.0]),
        (Phase::Alone { load: 1 }, [0.0, 20.0, 0.0, 0.0]),
        (Phase::Alone { load: 2 }, [0.0, 0.0, 50.0, 0.0]),
        (Phase::Alone { load: 3 }, [0.0, 0.0, 0.0, 50.0]),
        // Together, both directions carry 1.3 times as much as one.
        (beside(0, 2, 1.0), [35.0, 0.0, 30.0, 0.0]),
        (beside(1, 3, 1.0), [0.0, 20.0, 0.0, 45.0]),
    ];
    let found = together(&measured(loads, &phases));
    assert!((found[0] / 45.0 - 1.0).abs() < 0.03 && (found[1] / 20.0 - 1.0).abs() < 0.03, "{found:?}");
}

/// A thread that polls has its part of a core also while another resource limits its load.
#[test]
fn a_load_that_polls_leaves_its_core_no_more_time_when_it_is_slow() {
    let (core, to) = (Resource::Core(0), Resource::LinkToDevice("gpu:0".into()));
    let mut poll = loaded("poll", &[(to.clone(), 1.0), (core.clone(), 0.0)], None);
    poll.uses[1].per_byte = None;
    let spin = |of| loaded("spin", &[(core.clone(), 1.0 / 40.0 / GIGA)], of);
    let loads =
        vec![poll, spin(None), on_link("full", &to, false), antagonist(&to, false), spin(Some(core.clone()))];
    let beside = |load, antagonist, share| Phase::Beside { load, antagonist, share };
    let phases = [
        (Phase::Alone { load: 0 }, [50.0, 0.0, 0.0, 0.0, 0.0]),
        (Phase::Alone { load: 1 }, [0.0, 40.0, 0.0, 0.0, 0.0]),
        (Phase::Alone { load: 2 }, [0.0, 0.0, 50.0, 0.0, 0.0]),
        (Phase::Alone { load: 3 }, [0.0, 0.0, 0.0, 50.0, 0.0]),
        (Phase::Alone { load: 4 }, [0.0, 0.0, 0.0, 0.0, 40.0]),
        (beside(0, 3, 1.0), [25.0, 0.0, 0.0, 25.0, 0.0]),
        (beside(2, 3, 1.0), [0.0, 0.0, 25.0, 25.0, 0.0]),
        (beside(0, 4, 1.0), [49.0, 0.0, 0.0, 0.0, 20.0]),
        (beside(1, 4, 1.0), [0.0, 20.0, 0.0, 0.0, 20.0]),
    ];
    let mut measured = measured(loads, &phases);
    measured.users = 3;
    for of in &mut measured.observations {
        // Those that compute have work all the time.
        [1, 4].into_iter().for_each(|load| of.loads[load].busy = Some(0.99));
    }
    let found = together(&measured);
    assert!((found[1] / 20.0 - 1.0).abs() < 0.05, "half of the core: {found:?}");
    assert!((found[0] / 25.0 - 1.0).abs() < 0.05, "half of the link: {found:?}");
}
