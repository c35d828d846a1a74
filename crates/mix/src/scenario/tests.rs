use super::*;

const FILE: &str = r#"
title = "Work in memory beside computing"

[parameters]
core = 0
other = ""

[[load]]
name = "copies"
kind = "memory"
size = "64K"
cores = ["{core}"]
rate = "2GB/s"

[[load]]
kind = "cpu"
threads = 2
"#;

fn of_file(text: &str) -> Result<Scenario, Error> {
    let mut draft = Draft::default();
    draft.add_file("mix.toml", text)?;
    draft.scenario(&[])
}

fn of_texts(texts: &[&str]) -> Result<Scenario, Error> {
    let mut draft = Draft::default();
    texts.iter().try_for_each(|text| draft.add_load(text))?;
    draft.scenario(&[])
}

#[test]
fn a_file_and_the_command_line_give_the_same_loads() {
    let file = of_file(FILE).unwrap();
    assert_eq!(file.title, "Work in memory beside computing");
    let texts = of_texts(&["memory name=copies size=64K cores=0 rate=2GB/s", "cpu threads=2"]).unwrap();
    let loads = |scenario: &Scenario| format!("{:?}", scenario.loads);
    assert_eq!(
        loads(&file).replace(", \"name\": \"copies\"", ""),
        loads(&texts).replace(", \"name\": \"copies\"", "")
    );
    assert_eq!(file.loads[0].cores, [0]);
    assert_eq!(file.loads[0].rate, Some(Rate::Bits(16e9)));
    assert_eq!(file.loads[1].threads, Some(2));
}

#[test]
fn a_wrong_file_is_refused_with_line_and_suggestion() {
    let load = |line: &str| format!("[[load]]\nkind = \"memory\"\n{line}\n");
    for (text, expected) in [
        ("tilte = \"x\"".into(), "scenario mix.toml:1: tilte: there is no such key; did you mean title?"),
        (
            load("sise = \"4K\""),
            "scenario mix.toml:3: a load of kind memory has no key 'sise'; did you mean size?",
        ),
        (load("size = \"big\""), "scenario mix.toml:3: size: 'big' is not a size"),
        (load("size = 12.5"), "scenario mix.toml:3: size: '12.5' is not a size"),
        (load("stores = \"plan\""), "did you mean plain? choose plain, nontemporal"),
        (load("threads = 0"), "scenario mix.toml:3: threads: '0': give a whole number from 1 to 64"),
        (load("cores = [5000]"), "core 5000 does not exist"),
        (load("rate = \"1 parsec\""), "scenario mix.toml:3: rate: '1 parsec' is not a rate"),
        (load("name = \"{card}\""), "there is no parameter 'card'"),
        (load("name = { a = 1 }"), "scenario mix.toml:3: name: give a text, a number or a list"),
        (
            "[[load]]\nkind = \"memroy\"".into(),
            "scenario mix.toml:2: there is no kind of load 'memroy'; did you mean memory?",
        ),
        ("[[load]]\ncores = 0".into(), "scenario mix.toml:1: it has no kind"),
        ("[load]\nkind = \"cpu\"".into(), "begin each load with [[load]]"),
        ("a = ".into(), "scenario mix.toml:1"),
        (String::new(), "it has no load"),
        (load("") + &load("name = \"memory\""), "another load is named memory"),
    ] {
        let error = of_file(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_wrong_load_of_the_command_line_is_refused() {
    for (text, expected) in [
        ("memory cores", "load='memory cores': 'cores' is not a setting"),
        ("memory size=4K size=8K", "size is given twice"),
        ("", "it has no kind"),
        ("memory operation=reed", "load='memory operation=reed': operation: 'reed': did you mean read?"),
        ("memory cores=900", "load memory: core 900: this process may use only"),
    ] {
        let error = of_texts(&[text]).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let many = ["cpu"; MOST_LOADS + 1];
    assert!(of_texts(&many).unwrap_err().to_string().contains("at most 16"));
}

#[test]
fn parameters_and_settings_are_replaced() {
    let mut draft = Draft::default();
    draft.add_file("mix.toml", FILE).unwrap();
    draft.set("core", "1000").unwrap();
    assert!(draft.scenario(&[]).unwrap_err().to_string().contains("core 1000"));
    draft.set("copies.cores", "0").unwrap();
    draft.set("cpu.threads", "3").unwrap();
    assert_eq!(draft.scenario(&[]).unwrap().loads[1].threads, Some(3));
    for (key, expected) in [("copis.size", "did you mean copies?"), ("cor", "did you mean core?")] {
        let error = draft.set(key, "1").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    draft.set("copies.size", "1x").unwrap();
    assert!(draft.scenario(&[]).unwrap_err().to_string().starts_with("set=copies.size=1x: size: '1x'"));
    draft.set("copies.size", "{other}").unwrap();
    assert!(draft.scenario(&[]).unwrap_err().to_string().contains("the parameter other has no value"));
}

#[test]
fn loads_without_names_are_numbered_and_take_turns_on_the_cores() {
    let mut draft = Draft::default();
    for text in ["cpu", "cpu", "cpu name=own cores=0", "cpu"] {
        draft.add_load(text).unwrap();
    }
    let scenario = draft.scenario(&[0]).unwrap();
    let names: Vec<&str> = scenario.loads.iter().map(|load| load.name.as_str()).collect();
    assert_eq!(names, ["cpu", "cpu2", "own", "cpu3"]);
    assert!(scenario.loads.iter().all(|load| load.cores == [0]));
    assert!(scenario.warnings.contains(&"cpu and cpu2 share core 0".to_string()));
}

proptest::proptest! {
    #[test]
    fn any_text_is_a_scenario_or_refused(text in ".{0,80}") {
        let _ = of_texts(&[&text]);
        let _ = of_file(&text);
    }
}
