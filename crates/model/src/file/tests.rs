use super::*;
use crate::test_beds::TEST_BEDS;
use proptest::prelude::*;

const SYSTEM: &str = r#"title = "a system"

[resource.link]
kind = "pcie"
gen = 4
width = 16
mps = 256

[resource.dram]
kind = "memory"
channels = 2
megatransfers = 5600
write_cost = 1.5

[resource.line]
kind = "ethernet"
rate = "100 Gb/s"

[resource.copier]
kind = "engine"
rate = "10 GB/s"
per_operation = "2us"

[resource.workers]
kind = "cores"
count = 2

[flow.reads]
window = "64K"
latency = "10us"
use = { link = "read", dram = "write" }

[flow.sends]
follows = "reads"
packet = 1024
use = { line = "tx", workers = { per_packet = "50ns" } }

[flow.copies]
operation = 20000
use = { copier = "transfer", dram = "copy" }
"#;

fn solve(text: &str, settings: &[&str]) -> Result<Vec<Case>> {
    let settings: Vec<String> = settings.iter().map(|text| text.to_string()).collect();
    Model::parse("a.toml", text)?.cases(&settings)
}

fn rate(case: &Case, name: &str) -> f64 {
    case.solution.flows[case.flows.iter().position(|flow| flow.name == name).unwrap()].rate
}

fn message(text: &str, settings: &[&str]) -> String {
    match solve(text, settings) {
        Ok(cases) => panic!("no error: {:?}", cases[0].solution),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_file_becomes_a_network() {
    let case = solve(SYSTEM, &[]).unwrap().remove(0);
    let used = |name: &str| {
        let at = case.resources.iter().position(|resource| resource.name == name).unwrap();
        (case.solution.resources[at].used, case.resources[at].capacity)
    };
    // 64 KiB each 10 us.
    assert!((rate(&case, "reads") - 6.5536e9).abs() < 1.0);
    assert_eq!(rate(&case, "sends"), rate(&case, "reads"));
    // 20 kB take 2 us and 2 us.
    assert!((rate(&case, "copies") - 5e9).abs() < 1.0);
    assert!((used("link.down").0 / rate(&case, "reads") - 276.0 / 256.0).abs() < 1e-9);
    assert!((used("line.tx").0 / rate(&case, "reads") - 1048.0 / 1024.0).abs() < 1e-9);
    assert!((used("dram").0 - (1.5 * 6.5536e9 + 2.5 * 5e9)).abs() < 1e3);
    assert_eq!(used("dram").1, 89.6e9);
    assert!((used("workers").0 - 6.5536e9 / 1024.0 * 50e-9).abs() < 1e-6);
}

#[test]
fn settings_replace_values() {
    let with = |settings: &[&str], name| rate(&solve(SYSTEM, settings).unwrap()[0], name);
    assert!((with(&["reads.window=32K"], "reads") - 3.2768e9).abs() < 1.0);
    assert!((with(&["resource.copier.per_operation=0us"], "copies") - 10e9).abs() < 1.0);
    // A key that the file leaves out, and a word of a nested table.
    assert!((with(&["reads.rate=1 GB/s"], "reads") - 1e9).abs() < 1.0);
    assert!(with(&["link.gen=1", "link.width=1"], "reads") < 0.25e9);
    assert!((with(&["copies.use.copier=transfer"], "copies") - 5e9).abs() < 1.0);
    // A setting wins over the case.
    let text = format!("{SYSTEM}\n[[case]]\nset = {{ \"reads.window\" = 4096 }}\n");
    assert!((rate(&solve(&text, &[]).unwrap()[0], "reads") - 409.6e6).abs() < 1.0);
    assert!((rate(&solve(&text, &["reads.window=8192"]).unwrap()[0], "reads") - 819.2e6).abs() < 1.0);
}

#[test]
fn tags_limit_reads() {
    let text = SYSTEM.replace("mps = 256", "mps = 256\ntags = 64\nlatency = \"10us\"");
    assert!((rate(&solve(&text, &[]).unwrap()[0], "reads") - 64.0 * 512.0 / 10e-6).abs() < 1.0);
}

#[test]
fn mistakes_in_settings_name_the_setting_and_the_nearest_name() {
    for (setting, expected) in [
        ("link.gem=5", "did you mean gen?"),
        ("lnik.gen=5", "did you mean link?"),
        ("link.gen=9", "9 is out of range; give 1 to 6"),
        ("link.gen=fast", "the value must be a number"),
        ("link.gen", "it has no value; give KEY=VALUE"),
        ("link=5", "link.gen=5"),
        ("published.x.value=5", "not inputs"),
        ("reads.window=many", "'many' is not a size"),
        ("sends.follows=sends", "cycle"),
        ("=", "there is no name ''"),
        ("link.gen.x=1", "the value must be"),
    ] {
        let text = message(SYSTEM, &[setting]);
        assert!(
            text.starts_with(&format!("set={setting}: ")) && text.contains(expected),
            "{setting}: {text}"
        );
    }
}

#[test]
fn mistakes_in_files_name_line_and_key() {
    for (from, to, place, expected) in [
        ("gen = 4", "gen = nan", "a.toml:5: resource.link.gen: ", "out of range"),
        ("gen = 4", "gen = -4", "a.toml:5: resource.link.gen: ", "give 1 to 6"),
        ("gen = 4", "gen = 4.5", "a.toml:5: resource.link.gen: ", "whole number"),
        ("gen = 4", "gen = true", "a.toml:5: resource.link.gen: ", "a number"),
        ("gen = 4", "", "a.toml:3: resource.link: ", "'gen' is missing"),
        ("gen = 4", "gne = 4", "a.toml:3: resource.link: ", "'gen' is missing"),
        ("mps = 256", "msp = 256", "a.toml:7: resource.link.msp: ", "did you mean mps"),
        ("mps = 256", "mps = 0", "a.toml:7: resource.link.mps: ", "give 1 to 4096"),
        ("mps = 256", "tags = 4", "a.toml:3: resource.link: ", "'latency' is missing"),
        ("\"pcie\"", "\"pci\"", "a.toml:4: resource.link.kind: ", "choose pcie, duplex"),
        ("100 Gb/s", "100 Gb", "a.toml:17: resource.line.rate: ", "'Gb' is not a unit"),
        ("100 Gb/s", "0 Gb/s", "a.toml:17: resource.line.rate: ", "out of range"),
        ("100 Gb/s", "1e99 Gb/s", "a.toml:17: resource.line.rate: ", "not a unit"),
        ("count = 2", "count = 0", "a.toml:26: resource.workers.count: ", "out of range"),
        ("count = 2", "count = inf", "a.toml:26: resource.workers.count: ", "out of range"),
        ("link = \"read\"", "lnk = \"read\"", "a.toml:31: flow.reads.use.lnk: ", "did you mean link"),
        ("link = \"read\"", "link = \"raed\"", "a.toml:31: flow.reads.use.link: ", "choose read, write"),
        ("link = \"read\"", "link = 1", "a.toml:31: flow.reads.use.link: ", "a word"),
        ("\"reads\"", "\"sends\"", "a.toml:34: flow.sends.follows: ", "cycle: sends -> sends"),
        ("\"reads\"", "\"raeds\"", "a.toml:34: flow.sends.follows: ", "did you mean reads"),
        ("packet = 1024", "", "a.toml:36: flow.sends.use.line: ", "'packet'"),
        ("operation = 20000", "", "a.toml:40: flow.copies.use.copier: ", "'operation'"),
        (
            "use = { copier = \"transfer\", dram = \"copy\" }",
            "",
            "a.toml:38: flow.copies: ",
            "nothing limits",
        ),
        ("title = ", "titel = ", "a.toml:1: titel: ", "did you mean title"),
    ] {
        let text = SYSTEM.replacen(from, to, 1);
        assert_ne!(text, SYSTEM, "{from}");
        let found = message(&text, &[]);
        assert!(
            found.starts_with(&format!("model {place}")) && found.contains(expected),
            "{from} -> {to}: {found}"
        );
    }
    let fifo = SYSTEM.replace("write_cost = 1.5", "sharing = \"fifo\"");
    assert!(message(&fifo, &[]).contains("a.toml:38: flow.copies: the flow shares the queue of 'dram'"));
}

#[test]
fn chains_add_up_and_cycles_are_found() {
    let text = "[stage]\na = { time = \"4us\" }\nb = { rate = \"1 GB/s\" }\n[chain.x]\nbytes = 1000\nstages = [\"a\", \"b\"]\n\
                [chain.y]\nstages = [\"x\", { stage = \"x\", factor = 0.5 }]\n";
    let case = solve(text, &[]).unwrap().remove(0);
    assert!((case.chains[0].time - 5e-6).abs() < 1e-15 && (case.chains[1].time - 7.5e-6).abs() < 1e-15);
    assert!((case.chains[0].rate().unwrap() - 200e6).abs() < 1e-3);
    let cycle = text.replace("[\"a\", \"b\"]", "[\"a\", \"y\"]");
    assert!(
        message(&cycle, &[]).contains("chain.x: this is a cycle: x -> y -> x"),
        "{}",
        message(&cycle, &[])
    );
    assert!(message(&text.replace("bytes = 1000\n", ""), &[]).contains("no 'bytes'"));
    assert!(message(&text.replace("4us", "4"), &[]).contains("a.toml:2: stage.a.time"));
}

#[test]
fn hostile_files_end_with_an_error_or_a_result() {
    // Chains that double in each step, chains and followers in long rows, and deep nesting.
    let mut doubling = String::from("[stage]\na = { time = \"1us\" }\n[chain.c0]\nstages = [\"a\", \"a\"]\n");
    for index in 1..60 {
        doubling += &format!("[chain.c{index}]\nstages = [\"c{0}\", \"c{0}\"]\n", index - 1);
    }
    assert!(solve(&doubling, &[]).is_ok());
    let mut row = String::from("[stage]\na = { time = \"1us\" }\n[chain.c5000]\nstages = [\"a\"]\n");
    let mut followers = String::from("[flow.f3000]\nrate = \"1 GB/s\"\n");
    for index in (0..3000).rev() {
        row +=
            &format!("[chain.c{index}]\nstages = [\"c{}\"]\n", if index == 2999 { 5000 } else { index + 1 });
        followers = format!("[flow.f{index}]\nfollows = \"f{}\"\n", index + 1) + &followers;
    }
    let _ = solve(&row, &[]);
    assert_eq!(solve(&followers, &[]).unwrap()[0].flows.len(), 3001);
    for (open, close) in [("[", "]"), ("{ a = ", " }")] {
        let _ = solve(&format!("x = {}1{}", open.repeat(20_000), close.repeat(20_000)), &[]);
    }
    let _ = solve(&format!("[{}]\n", "a.".repeat(20_000) + "a"), &[]);
}

#[test]
fn the_largest_and_smallest_numbers_work_together() {
    let text = "[resource.a]\nkind = \"rate\"\ncapacity = 1e30\n[resource.b]\nkind = \"rate\"\ncapacity = 1e-30\n\
                [flow.x.use]\na = 1e-18\nb = 1e18\n[flow.y.use]\na = 1\n";
    let case = solve(text, &[]).unwrap().remove(0);
    assert!(
        case.solution.flows.iter().all(|flow| flow.rate.is_finite() && flow.rate > 0.0),
        "{:?}",
        case.solution
    );
    case.margins();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Replaces a part of a valid file. The result is a model with finite rates or an error with its place.
    #[test]
    fn altered_files_are_solved_or_refused(
        bed in 0..TEST_BEDS.len() + 1,
        at in 0.0..1.0f64,
        length in 0..30usize,
        put in prop::sample::select(vec![
            "", "0", "-1", "nan", "inf", "1e999", "1e300", "\"", "[", "]", "{", "}", "=", "\n", "x", "\"0us\"", "\"1e9\"",
            "= 99999999999999999999", "\"fifo\"", "[[case]]", "[resource.x]", "sharing = \"fifo\"\n", "\u{0}", "é",
        ]),
    ) {
        let text = TEST_BEDS.get(bed).map_or(SYSTEM, |(_, text)| text);
        let boundary = |mut at: usize| {
            while !text.is_char_boundary(at) { at -= 1 }
            at
        };
        let from = boundary((at * text.len() as f64) as usize);
        let to = boundary((from + length).min(text.len())).max(from);
        let altered = format!("{}{put}{}", &text[..from], &text[to..]);
        match solve(&altered, &[]) {
            Ok(cases) => for case in cases {
                prop_assert!(case.solution.flows.iter().all(|flow| flow.rate.is_finite()));
            }
            Err(Error::File { place, .. }) => prop_assert!(place.line.is_some_and(|line| line > 0)),
            Err(error) => prop_assert!(matches!(error, Error::Toml { .. }), "{error}"),
        }
    }

    #[test]
    fn any_setting_is_used_or_refused(setting in "(link|reads|resource|flow|case|x)?(\\.[a-z]{1,6}){0,3}=?[\"0-9a-zK\\[\\{. ]{0,6}") {
        let _ = solve(SYSTEM, &[&setting]);
    }
}
