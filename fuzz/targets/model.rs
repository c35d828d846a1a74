//! Solves arbitrary text as a model file. The first line may be a setting. Each text must be refused, or lead to
//! finite rates that fit into the resources. Margins must not fail.

use inlane_model::{Error, Model};

pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (setting, file) = match text.split_once('\n') {
        Some((setting, file)) if setting.starts_with("# set ") => (vec![setting[6..].to_string()], file),
        _ => (Vec::new(), text),
    };
    let Ok(model) = Model::parse("fuzz", file) else { return };
    let _ = model.published().map_err(|error| error.to_string());
    match model.cases(&setting) {
        Ok(cases) => {
            for case in cases {
                for (info, used) in case.resources.iter().zip(&case.solution.resources) {
                    assert!(
                        used.used <= info.capacity * 1.000001,
                        "{}: {} of {}",
                        info.name,
                        used.used,
                        info.capacity
                    );
                }
                assert!(case.solution.flows.iter().all(|flow| flow.rate.is_finite() && flow.rate >= 0.0));
                let _ = case.margins();
            }
        }
        Err(Error::File { place, problem }) => {
            assert!(place.line.is_some() || place.setting.is_some(), "{place}: {problem}");
            let _ = format!("{place}: {problem}");
        }
        Err(error) => panic!("{error}: an error without a place"),
    }
}
