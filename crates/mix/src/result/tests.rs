use super::*;
use crate::observation::{LoadRate, Void};
use crate::verdict::{Evidence, Fact, Says};

fn loaded(name: &str) -> Loaded {
    Loaded {
        name: name.into(),
        uses: Vec::new(),
        asked: None,
        fed: false,
        in_flight: None,
        antagonist_of: None,
        cores: Vec::new(),
        threads: 1,
    }
}

fn observation(phase: Phase, block: usize, bytes: [f64; 2]) -> Observation {
    let rate = |bytes| LoadRate {
        operations_per_second: bytes / 64.0,
        bytes_per_second: bytes,
        ..LoadRate::default()
    };
    Observation {
        phase,
        block,
        at_ns: 0,
        duration_ns: 1,
        loads: bytes.map(rate).to_vec(),
        signals: Signals::default(),
        void: None,
    }
}

/// Two loads on a link of 100 bytes per second, with a machine that becomes slower from block to block.
fn on_a_link() -> Measured {
    let mut observations = Vec::new();
    for block in 0..6 {
        let speed = 1.0 - block as f64 * 0.01;
        let mut add =
            |phase, bytes: [f64; 2]| observations.push(observation(phase, block, bytes.map(|it| it * speed)));
        add(Phase::Alone { load: 0 }, [100.0, 0.0]);
        add(Phase::Alone { load: 0 }, [100.0, 0.0]);
        add(Phase::Alone { load: 1 }, [0.0, 80.0]);
        add(Phase::Together, [50.0, 50.0]);
        add(Phase::Together, [51.0, 50.0]);
        add(Phase::Throttled { load: 0, share: 0.8 }, [40.5, 59.0]);
        add(Phase::Throttled { load: 1, share: 0.8 }, [50.5, 40.0]);
    }
    Measured { loads: vec![loaded("dma"), loaded("tx")], users: 2, observations, ..Measured::default() }
}

fn result(measured: Measured) -> MixResult {
    let mut draft = crate::Draft::default();
    draft.add_load("cpu name=dma").unwrap();
    draft.add_load("cpu name=tx").unwrap();
    MixResult::new(&draft.scenario(&[]).unwrap(), &Plan::default(), measured)
}

#[test]
fn gains_are_found_within_blocks() {
    let result = result(on_a_link());
    let [dma, tx] = &result.exchange[..] else { panic!("{:?}", result.exchange) };
    let gain = &dma.gains[0];
    assert_eq!((gain.load.as_str(), dma.slowed.as_str()), ("tx", "dma"));
    assert!((gain.per_freed.unwrap() - 0.9).abs() < 1e-9, "{gain:?}");
    assert!(gain.gain_per_second.low > 8.0, "the slow change of the machine cancels out: {gain:?}");
    assert_eq!(tx.gains[0].gain_per_second.median, 0.0, "the other load did not want more");
    assert!((result.loads[0].kept_share.unwrap() - 0.505).abs() < 0.01);
    let difference = result.equal_phases_differ.unwrap();
    assert!((0.019..0.021).contains(&difference), "{difference}");
    assert!(result.notes.is_empty(), "{:?}", result.notes);
}

#[test]
fn disturbances_are_told() {
    let mut measured = on_a_link();
    measured.idle.others = Some(0.4);
    measured.loads[1].asked = Some(2.0);
    for observation in measured.observations.iter_mut().filter(|it| it.phase == Phase::Alone { load: 0 }) {
        observation.void = Some(Void::Drift(0.5));
    }
    let result = result(measured);
    assert!(
        result.loads[0].alone.as_ref().unwrap().disturbed
            && !result.loads[1].alone.as_ref().unwrap().disturbed
    );
    for expected in ["tx reaches 61 % of its rate", "other processes used 40 %", "12 of 42 observations"] {
        assert!(result.notes.iter().any(|note| note.contains(expected)), "{expected}: {:?}", result.notes);
    }
}

#[test]
fn evidence_has_its_schema_also_with_open_intervals() {
    let generator = schemars::generate::SchemaSettings::default().for_serialize().into_generator();
    let schema = generator.into_root_schema_for::<MixResult>().to_value();
    for blocks in [1, 6] {
        let mut measured = on_a_link();
        measured.observations.retain(|observation| observation.block < blocks);
        measured.loads[0].asked = Some(1.0);
        for load in &mut measured.loads {
            load.uses = vec![Use {
                resource: Resource::LinkToDevice("gpu:0".into()),
                per_byte: Some(1.0),
                source: UseSource::Computed,
            }];
        }
        let row = serde_json::to_value(result(measured)).unwrap();
        jsonschema::validate(&schema, &row).unwrap();
        for verdict in row["verdicts"].as_array().unwrap() {
            assert_ne!(verdict["bottleneck"].is_null(), verdict["not_determined"].is_null(), "{verdict}");
        }
        let link = serde_json::json!({ "kind": "link_to_device", "name": "gpu:0" });
        assert_eq!(row["loads"][0]["uses"][0]["resource"], link);
        let candidates = row["verdicts"][0]["candidates"].as_array().unwrap();
        let facts = candidates.iter().flat_map(|candidate| candidate["evidence"].as_array().unwrap());
        let exchange = facts.map(|it| &it["fact"]).find(|fact| fact["kind"] == "exchange").expect("a fact");
        assert_eq!(exchange["gain"]["low"].is_null(), blocks == 1, "{exchange}");
        assert!(exchange["freed_per_second"].is_number(), "{exchange}");
    }
}

#[test]
fn an_exchange_is_told_in_the_units_of_both_loads() {
    let mut measured = on_a_link();
    measured.observations.iter_mut().for_each(|it| it.loads[1].bytes_per_second = 0.0);
    let gain = Estimate { median: 0.2, low: 0.1, high: 0.3, count: 6 };
    let told = |load, slowed, in_units, per_unit| {
        let fact = Fact::Exchange { slowed, freed: 1.0, gain, per_unit, in_units };
        text::line(&measured, load, "x", &Evidence { fact, says: Says::For }).unwrap()
    };
    let line = |load, slowed, in_units| told(load, slowed, in_units, 2.0);
    assert_eq!(
        told(0, 1, false, 0.004),
        "x: it gained one byte for each 250 operations that tx gave up (for)"
    );
    assert_eq!(line(0, 1, false), "x: it gained 2.00 bytes for each operation that tx gave up (for)");
    assert_eq!(line(1, 0, false), "x: it gained 2.00 operations for each byte that dma gave up (for)");
    assert_eq!(line(1, 0, true), "x: it gained 2.00 units of it for each unit that dma gave up (for)");
}

#[test]
fn a_session_without_observations_has_a_row() {
    let result = result(Measured { cut: Some(Cut::Interrupted), ..Measured::default() });
    assert!(result.loads.is_empty() && result.exchange.is_empty());
    let json = serde_json::to_value(&result).unwrap();
    assert_eq!(json["cut"], "interrupted");
}

#[test]
fn observations_are_read_as_they_are_written() {
    let mut measured = on_a_link();
    measured.observations[0].void = Some(Void::Stolen(0.1));
    measured.observations[1].loads[0].busy = Some(0.5);
    let json = serde_json::to_string(&measured.observations).unwrap();
    let read: Vec<Observation> = serde_json::from_str(&json).unwrap();
    // The last digit of a rate may differ.
    let rounded = |observations: &[Observation]| -> Vec<_> {
        let bytes =
            |it: &Observation| it.loads.iter().map(|load| load.bytes_per_second.round()).collect::<Vec<_>>();
        observations.iter().map(|it| (it.phase, it.block, it.void, bytes(it), it.loads[0].busy)).collect()
    };
    assert!(rounded(&read) == rounded(&measured.observations));
}
