use super::*;
use crate::file::{Case, Quantity};
use crate::published::{Published, PublishedUnit, Status};

/// A test bed: its name, cases and results.
type Bed = (String, Vec<Case>, Vec<(String, Published)>);

fn cases() -> Vec<Bed> {
    let read = |(name, _): &(&str, &str)| {
        let model = test_bed(name).unwrap().unwrap();
        (name.to_string(), model.cases(&[]).unwrap(), model.published().unwrap())
    };
    TEST_BEDS.iter().map(read).collect()
}

fn find<'a>(all: &'a [(String, Published)], name: &str) -> &'a Published {
    &all.iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("no result {name}")).1
}

#[test]
fn each_case_of_a_test_bed_has_a_result_and_each_result_a_case() {
    for (bed, cases, published) in cases() {
        for case in &cases {
            let name = case.published.as_deref().expect("a case of a test bed names its result");
            let value = case.value(find(&published, name).unit);
            assert!(value.is_some_and(f64::is_finite), "{bed}: {}: no value", case.name);
            assert!(case.status.is_some(), "{bed}: {}: no status", case.name);
            assert!(
                case.status == Some(Status::Identity) || !case.assumes.is_empty(),
                "{bed}: {}: no assumptions",
                case.name
            );
        }
        for (name, _) in &published {
            assert!(
                cases.iter().any(|case| case.published.as_ref() == Some(name)),
                "{bed}: {name} has no case"
            );
        }
    }
}

/// Changes all published results. No rate, time or limit may change with them.
#[test]
fn published_results_are_no_inputs() {
    for (bed, text) in TEST_BEDS {
        let changed: String = text
            .lines()
            .map(|line| match line.strip_prefix("value = ") {
                Some(value) => format!("value = {}\n", value.parse::<f64>().unwrap() * 3.7),
                None => format!("{line}\n"),
            })
            .collect();
        assert_ne!(text, changed, "{bed} has published values");
        let solve = |text: &str| Model::parse(bed, text).unwrap().cases(&[]).unwrap();
        for (one, other) in solve(text).iter().zip(&solve(&changed)) {
            assert_eq!(one.solution, other.solution, "{bed}: {}", one.name);
            assert_eq!(one.chains, other.chains, "{bed}: {}", one.name);
        }
    }
}

/// A prediction may use other published results, but neither its own nor a number that equals it.
#[test]
fn no_prediction_has_its_own_result_as_input() {
    for (bed, cases, published) in cases() {
        for case in cases.iter().filter(|case| case.status == Some(Status::Prediction)) {
            let published = find(&published, case.published.as_ref().unwrap());
            let Some(value) = published.value else { continue };
            let rates = case.network.flows.iter().filter_map(|flow| flow.demand);
            let capacities = case.resources.iter().map(|resource| resource.capacity);
            let chain = match &case.quantity {
                Some(Quantity::Chain(index)) => Some(&case.chains[*index]),
                _ => None,
            };
            let stages = chain.into_iter().flat_map(|chain| {
                let rates = chain.stages.iter().filter_map(|stage| Some(chain.bytes? / stage.time));
                rates.chain(chain.stages.iter().map(|stage| stage.time))
            });
            for input in rates.chain(capacities).chain(stages) {
                let shown = [input * 8.0 / 1e9, input * 8.0 / 1e6, input / 1048576.0, input * 1e6];
                let same = |shown: &f64| (shown / value - 1.0).abs() < 1e-6;
                assert!(!shown.iter().any(same), "{bed}: {}: {value} is an input", case.name);
            }
        }
    }
}

#[test]
fn identities_are_exact() {
    for (bed, cases, published) in cases() {
        for case in cases.iter().filter(|case| case.status == Some(Status::Identity)) {
            let published = find(&published, case.published.as_ref().unwrap());
            // The published shares divide MiB by MB, which the case corrects.
            let expected = published.value.unwrap()
                * if published.unit == PublishedUnit::Percent { 1.0737 } else { 1.0 };
            let value = case.value(published.unit).unwrap();
            assert!(
                (value / expected - 1.0).abs() < 0.003,
                "{bed}: {}: {value} and not {expected}",
                case.name
            );
        }
    }
}
