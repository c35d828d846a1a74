use super::*;
use inlane_core::port::Counters;
use inlane_forward::PortCounters;
use inlane_forward::run::Reading;

/// Parses a page by the rules of Prometheus' text format: each family is described before its samples, and its samples are together. Returns
/// the values by name and labels.
fn parse(page: &str) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    let mut families = std::collections::HashMap::new();
    let mut current = String::new();
    let is_name = |name: &str| {
        !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && name.starts_with("inlane_")
    };
    assert!(page.ends_with('\n'), "the last line is complete");
    for line in page.lines() {
        if let Some(described) = line.strip_prefix("# ") {
            let mut words = described.splitn(3, ' ');
            let (kind, name, text) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            assert!(["HELP", "TYPE"].contains(&kind) && is_name(name) && !text.is_empty(), "{line}");
            if current != name {
                assert!(!families.contains_key(name), "{name} is described twice");
                current = name.to_owned();
            }
            let family: &mut (String, String) = families.entry(name.to_owned()).or_default();
            *if kind == "TYPE" { &mut family.0 } else { &mut family.1 } = text.to_owned();
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').expect(line);
        let (name, labels) = match sample.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').expect(line)),
            None => (sample, ""),
        };
        let (kind, help) = &families[&current];
        assert!(name == current && !help.is_empty(), "{line}");
        assert_eq!(kind, if name.ends_with("_total") { "counter" } else { "gauge" }, "{line}");
        // Split at commas outside of quotes.
        let (mut quoted, mut escaped) = (false, false);
        let parts: Vec<&str> = labels
            .split(|c| {
                quoted ^= c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                c == ',' && !quoted
            })
            .filter(|part| !part.is_empty())
            .collect();
        assert!(!quoted, "{line}");
        for part in parts {
            let (label, value) = part.split_once("=\"").expect(line);
            assert!(
                label.chars().all(|c| c.is_ascii_lowercase() || c == '_') && value.ends_with('"'),
                "{line}"
            );
        }
        let value: f64 = value.parse().expect(line);
        assert!(
            value >= 0.0 && values.insert(sample.to_owned(), value).is_none(),
            "{line} stands there twice"
        );
    }
    values
}

/// Lets promtool check a page, if it is installed.
fn promtool(page: &str) {
    let spawned = std::process::Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else {
        return eprintln!("SKIPPED promtool check metrics: promtool is not installed");
    };
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_page_of_forward_has_each_port_and_direction() {
    let counters = |packets| Some(Counters { packets, bytes: packets * 64, missed: 3, errors: 1 });
    let port = |port: &str, rx, tx| PortCounters { port: port.into(), rx, tx };
    // A name of a port may have any characters.
    let hostile = "pcap:a\"b\\c\nd,e=\"f\"";
    let twice = || port("null", None, counters(4));
    let ports = vec![port("gen:64", counters(10), None), port(hostile, None, counters(7)), twice(), twice()];
    let page = forward_page(&Reading { ports, ..Reading::default() });
    let values = parse(&page);
    promtool(&page);
    assert_eq!(values["inlane_forward_packets_total{port=\"gen:64\",direction=\"rx\"}"], 10.0);
    assert_eq!(values["inlane_forward_packets_total{port=\"null\",direction=\"tx\"}"], 8.0, "named twice");
    assert_eq!(values["inlane_forward_missed_packets_total{port=\"gen:64\",direction=\"rx\"}"], 3.0);
    let sent: Vec<_> =
        values.keys().filter(|key| key.starts_with("inlane_forward_bytes_total{port=\"pcap")).collect();
    assert_eq!(
        sent,
        ["inlane_forward_bytes_total{port=\"pcap:a\\\"b\\\\c\\nd,e=\\\"f\\\"\",direction=\"tx\"}"]
    );
    assert!(values.contains_key("inlane_forward_busy_seconds_total"));
}

#[test]
fn every_metric_is_documented() {
    let documented =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md")).unwrap();
    let counters = Some(Counters::default());
    let ports = vec![PortCounters { port: "null".into(), rx: counters, tx: counters }];
    let forward = forward_page(&Reading { ports, ..Reading::default() });
    let target = target_page(&inlane_nvme::target::TargetResult {
        listeners: Vec::new(),
        nqn: String::new(),
        threads: 1,
        connections: 0,
        refused: 0,
        displaced: 0,
        protocol_violations: 0,
        data_digest_errors: 0,
        controllers: 0,
        keep_alive_expirations: 0,
        namespaces: Vec::new(),
    });
    let engine = serde_json::json!({
        "port": "", "path": "", "mac": "", "addresses": [], "uptime_ns": 0, "cpu_ns": 0, "threads": [], "down_interface": null,
        "link": {"received_packets": 0, "received_bytes": 0, "sent_packets": 0, "sent_bytes": 0, "ignored": 0, "malformed": 0,
            "fragments": 0, "reassembled": 0, "unassembled": 0, "dropped": 0, "own_packets": 0, "passed": 0},
        "connections": {"sockets": 0, "connected": 0, "accepted": 0, "time_wait": 0, "resets_sent": 0, "hostile": 0,
            "direct_bytes": 0, "kernel": 0, "requests": 0, "received_bytes": 0, "sent_bytes": 0, "retransmitted_bytes": 0},
        "datagrams": {"received": 0, "sent": 0, "received_bytes": 0, "sent_bytes": 0, "dropped": 0, "unsent": 0,
            "no_port": 0},
        "closing_descriptors": 0, "sockets": [], "kernel": []
    });
    let engine = engine_page(&serde_json::from_value(engine).unwrap());
    for page in [forward, target, engine] {
        parse(&page);
        promtool(&page);
        for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, _) = line.split_once(' ').unwrap();
            assert!(documented.contains(&format!("`{name}`")), "docs/metrics.md lacks {name}");
        }
    }
}

#[test]
fn the_dashboard_shows_documented_metrics() {
    let read =
        |path: &str| std::fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let documented = read("docs/metrics.md");
    let dashboard: serde_json::Value = serde_json::from_str(&read("packaging/grafana/inlane.json")).unwrap();
    let targets =
        dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut shown = 0;
    for expression in targets.map(|target| target["expr"].as_str().unwrap()) {
        let at = expression.find("inlane_").expect(expression);
        let name = expression[at..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
        assert!(documented.contains(&format!("`{name}`")), "docs/metrics.md lacks {name}");
        shown += 1;
    }
    assert!(shown > 10);
}

#[test]
fn requests_are_answered_and_nonsense_does_no_harm() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = listener.local_addr().unwrap();
    assert!(
        serve(free, || Ok(String::new())).unwrap_err().to_string().contains("cannot listen there"),
        "the port is in use"
    );
    drop(listener);
    serve(free, || Ok(Page::new().text())).unwrap();
    let ask = |request: &[u8]| {
        let mut stream = TcpStream::connect(free).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The server may answer, close and so reset the connection before it has read everything.
        let mut answer = Vec::new();
        let _ = stream.write_all(request).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let idle = TcpStream::connect(free).unwrap(); // sends nothing: the server gives up after a time
    let found = ask(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    let (head, body) = found.split_once("\r\n\r\n").expect(&found);
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains(&format!("Content-Length: {}", body.len())),
        "{head}"
    );
    assert_eq!(parse(body).len(), 1);
    assert!(ask(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(ask(b"nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    ask(&[0xff; 100_000]);
    ask(b"");
    assert!(ask(b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"), "still there");
    drop(idle);
}
