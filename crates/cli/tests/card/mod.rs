//! Programs on an engine whose card runs TCP: both are joined by the windows of an NTB.

use super::*;

/// Starts an engine with a card on a veth.
fn lab(test: &str, programs: &[(&str, &str)], more: &[&str]) -> Option<Lab> {
    let mut lab = Lab::new(test, programs)?;
    lab.uses_card = true;
    lab.serve(more);
    Some(lab)
}

#[test]
fn curl_and_redis_use_a_card_on_a_lossy_network() {
    let programs = [
        ("curl", "curl"),
        ("python3", "python3"),
        ("ethtool", "ethtool"),
        ("redis-server", "redis-server"),
        ("redis-benchmark", "redis-tools"),
    ];
    let faults = ["--faults", "drop=0.5%,duplicate=1%,reorder=1%:3,corrupt=0.5%,seed=5"];
    let Some(lab) = lab("card", &programs, &faults) else { return };
    // The receiver cannot see damage in frames without complete checksums.
    shell(&format!("ip netns exec {} ethtool -K k0 tx off", lab.name("k"))).unwrap();
    let page = page(1_000_000);
    std::fs::write(lab.folder.path().join("page"), &page).unwrap();
    let _server = kernel_web_server(&lab);
    for host in ["10.79.0.2", "[fd79::2]"] {
        let fetched =
            must(lab.offloaded("curl").args(["-sS", "--fail", &format!("http://{host}:8000/page")]));
        assert!(fetched == page, "{host}: the page was altered on its way");
    }
    let refused = lab.offloaded("curl").args(["-sS", "http://10.79.0.2:1/"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(7), "curl's status for a refused connection");

    let mut server = lab.offloaded("redis-server");
    server.args(["--bind", ENGINE, "--port", "6379", "--save", "", "--protected-mode", "no"]);
    let server = Running::start(&mut server);
    lab.wait_for_listener(6379);
    let mut benchmark = lab.on_kernel("redis-benchmark");
    benchmark.args(["-h", ENGINE, "-n", "2000", "-c", "20", "-t", "set,get", "--csv"]);
    let report = String::from_utf8(must(&mut benchmark)).unwrap();
    assert!(report.contains("\"GET\""), "{report}");
    assert!(lab.count("accepted") >= 40 && lab.count("received_bytes") > 100_000, "{}", lab.status());
    drop(server);
    lab.wait("sockets are left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

#[test]
fn datagrams_and_pings_pass_through_a_card() {
    let Some(lab) = lab("cardudp", &[("python3", "python3"), ("ping", "iputils-ping")], &[]) else { return };
    must(lab.on_kernel("ping").args(["-c", "2", "-W", "10", ENGINE]));
    must(lab.on_kernel("ping").args(["-c", "2", "-W", "10", "fd79::1"]));
    let echo = format!(
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('{KERNEL}', 7777)); s.settimeout(60); \
         print('ready', flush=True)\nfor _ in range(3): d, a = s.recvfrom(9000); s.sendto(d[::-1], a)"
    );
    let mut echo = lab.on_kernel("python3").args(["-c", &echo]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(echo.stdout.take().unwrap()), &mut line)
        .unwrap();
    // The last datagram needs fragments.
    let ask = format!(
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.settimeout(60)\n\
         for n in (1, 1000, 5000): m = bytes(i % 251 for i in range(n)); s.sendto(m, ('{KERNEL}', 7777)); assert s.recv(9000)[::-1] == m"
    );
    must(lab.offloaded("python3").args(["-c", &ask]));
    assert!(echo.wait().unwrap().success());
}

/// A server that answers each connection with one line, and reports what becomes of one that stays open.
const SERVER: &str = "\
import socket, threading
listener = socket.create_server(('10.79.0.1', 5000))
while True:
    connection, _ = listener.accept()
    connection.sendall(b'hello\\n')
    def watch(connection=connection):
        try:
            print('end', connection.recv(10), flush=True)
        except OSError as error:
            print('error', error.errno, flush=True)
    threading.Thread(target=watch, daemon=True).start()
";

/// A client that reads the line, then waits for the end, which it prints.
const CLIENT: &str = "\
import socket, sys
s = socket.create_connection(('10.79.0.1', 5000), 60)
assert s.recv(6) == b'hello\\n'
print('connected', flush=True)
if sys.argv[1] == 'wait':
    try:
        print('end', s.recv(10))
    except OSError as error:
        print('error', error.errno)
";

/// Connects from the kernel until a server answers.
fn wait_for_server(lab: &Lab) {
    lab.wait("the server does not answer", || {
        let mut client = lab.on_kernel("python3");
        client
            .args(["-c", CLIENT, "once"])
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .unwrap()
            .success()
    });
}

/// Starts a client in the kernel that waits for the end of its connection.
fn waiting_client(lab: &Lab) -> (Child, std::io::BufReader<std::process::ChildStdout>) {
    let mut client =
        lab.on_kernel("python3").args(["-c", CLIENT, "wait"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = std::io::BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert_eq!(line, "connected\n");
    (client, output)
}

#[test]
fn a_killed_card_resets_its_connections_and_the_listeners_use_the_next_one() {
    let Some(mut lab) = lab("cardkill", &[("python3", "python3")], &[]) else { return };
    let mut server =
        Running(lab.offloaded("python3").args(["-c", SERVER]).stdout(Stdio::piped()).spawn().unwrap());
    lab.wait_for_listener(5000);
    let (mut client, _output) = waiting_client(&lab);
    let mut card = lab.card.take().unwrap();
    card.kill().unwrap();
    card.wait().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.0.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, format!("error {}\n", libc::ECONNRESET));
    // Nobody tells the client, so it would wait for ever: a new card answers its next segment only.
    client.kill().unwrap();
    client.wait().unwrap();
    let link = format!("ntb:{},role=server", lab.folder.path().join("card").display());
    let mut next = lab.inlane("card");
    let (card, mut errors) = started(next.args(["--port", "af_xdp:e0", "--engine", &link]), "card ready");
    lab.card = Some(card);
    std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::stderr()));
    wait_for_server(&lab);
}

#[test]
fn a_killed_engine_ends_its_connections_and_the_card_serves_the_next_one() {
    let Some(mut lab) = lab("cardengine", &[("python3", "python3")], &[]) else { return };
    let server = Running::start(lab.offloaded("python3").args(["-c", SERVER]));
    lab.wait_for_listener(5000);
    let (mut client, mut output) = waiting_client(&lab);
    let mut engine = lab.engine.take().unwrap();
    engine.kill().unwrap();
    engine.wait().unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, format!("error {}\n", libc::ECONNRESET));
    assert!(client.wait().unwrap().success());
    // The listener returns with the next engine.
    lab.serve(&[]);
    wait_for_server(&lab);
    drop(server);
}

#[test]
fn a_card_ends_if_its_interface_is_removed() {
    let Some(mut lab) = lab("cardif", &[], &[]) else { return };
    shell(&format!("ip -n {} link delete k0", lab.name("k"))).unwrap();
    let mut card = lab.card.take().unwrap();
    assert_eq!(card.wait().unwrap().code(), Some(3));
    // The engine waits for the next card.
    assert!(lab.engine.as_mut().unwrap().try_wait().unwrap().is_none());
}
