//! Runs unmodified programs over the offload engine: curl, redis, nginx, iperf3, and Python's own tests of
//! sockets.
//!
//! ```text
//!   namespace E                                   namespace K
//!   engine 10.79.0.1, fd79::1 on e0 ====veth==== k0  10.79.0.2, fd79::2: the kernel's stack
//! ```
//!
//! Programs whose sockets the engine runs are started outside both network namespaces. They reach the engine
//! only through its control socket. If such a socket stayed with the kernel, it would find no peer. Without
//! root, or without one of the programs, a test prints why and is skipped.

mod calls;
mod card;
mod datagrams;
mod direct;
mod hostile;
mod interface;
mod joined;
mod musl;
mod placed;
mod rdma;
mod restart;
mod stores;
mod threads;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const ENGINE: &str = "10.79.0.1";
const KERNEL: &str = "10.79.0.2";

/// How long a program may run, in seconds. Then `timeout` ends it.
const LIMIT: &str = "300";

/// An engine, and a peer that uses the kernel's stack, each in a network namespace. Dropping the value ends
/// the engine and removes the namespaces.
struct Lab {
    prefix: String,
    folder: tempfile::TempDir,
    engine: Option<Child>,
    /// The card that runs TCP for the engine, if the test has one.
    card: Option<Child>,
    /// True if the next engine gets a card.
    uses_card: bool,
}

impl Lab {
    /// Creates the namespaces. If this machine does not allow that, or lacks a program, prints why and
    /// returns `None`.
    fn new(test: &str, programs: &[(&str, &str)]) -> Option<Self> {
        Self::with_queues(test, programs, 1)
    }

    /// Does the same as [`Lab::new`]. Both ends of the veth have `queues` receive queues and `queues`
    /// transmit queues.
    fn with_queues(test: &str, programs: &[(&str, &str)], queues: u32) -> Option<Self> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED {test}: network namespaces need root");
            return None;
        }
        let common = [("ip", "iproute2"), ("timeout", "coreutils")];
        for (program, package) in common.iter().chain(programs) {
            let quiet = || Stdio::null();
            let found = Command::new(program)
                .arg("--version")
                .stdout(quiet())
                .stderr(quiet())
                .stdin(quiet())
                .status();
            if found.is_err() {
                eprintln!("SKIPPED {test}: the program {program} is missing; apt-get install {package}");
                return None;
            }
        }
        build_library();
        let folder = tempfile::tempdir().unwrap();
        shell(&format!("chmod 755 {}", folder.path().display())).unwrap();
        let lab = Self {
            prefix: format!("inlane-off-{test}-{}", std::process::id()),
            folder,
            engine: None,
            card: None,
            uses_card: uses_card(),
        };
        for side in ["e", "k"] {
            if let Err(error) = shell(&format!("ip netns add {}", lab.name(side))) {
                eprintln!("SKIPPED {test}: no network namespace: {error}");
                return None;
            }
            shell(&format!("ip -n {} link set lo up", lab.name(side))).unwrap();
        }
        let (e, k) = (lab.name("e"), lab.name("k"));
        let count = format!("numrxqueues {queues} numtxqueues {queues}");
        for line in [
            format!("ip link add e0 netns {e} {count} type veth peer name k0 netns {k} {count}"),
            format!("ip -n {e} link set e0 up"),
            format!("ip -n {k} link set k0 up"),
            format!("ip -n {k} address add {KERNEL}/24 dev k0"),
            format!("ip -n {k} address add fd79::2/64 dev k0 nodad"),
        ] {
            shell(&line).unwrap();
        }
        Some(lab)
    }

    fn name(&self, side: &str) -> String {
        format!("{}-{side}", self.prefix)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("control")
    }

    fn serve(&mut self, more: &[&str]) {
        self.serve_on("af_xdp:e0", more);
    }

    /// Starts an engine on a port. The thread returns what the engine has written to standard error when it ended.
    fn serve_on(&mut self, port: &str, more: &[&str]) -> std::thread::JoinHandle<String> {
        let mut command = self.inlane("serve");
        let addresses = ["--address", "10.79.0.1/24", "--address", "fd79::1/64"];
        command.args(addresses).arg("--socket").arg(self.socket());
        let refused = |pair: &[&str]| match pair[0] {
            "--threads" => pair[1] != "1",
            other => matches!(other, "--transport" | "--mac"),
        };
        if self.uses_card && !more.chunks(2).any(refused) {
            let link = format!("ntb:{}", self.folder.path().join("card").display());
            let mut card = self.inlane("card");
            card.args(["--port", port, "--engine", &format!("{link},role=server")]);
            command.args(["--card", "--port", &link]);
            // What concerns the network is the card's.
            let (of_card, of_engine): (Vec<_>, Vec<_>) =
                more.chunks(2).partition(|pair| matches!(pair[0], "--faults" | "--mtu"));
            command.args(of_engine.concat());
            // A card outlives its engine.
            if self.card.is_none() {
                // Each waits for the other.
                let of_card: Vec<String> = of_card.concat().into_iter().map(str::to_owned).collect();
                let waiting = std::thread::spawn(move || {
                    let (card, mut errors) = started(card.args(of_card), "card ready");
                    std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::stderr()));
                    card
                });
                let (child, errors) = started(&mut command, "engine ready");
                self.card = Some(waiting.join().unwrap());
                return self.watch(child, errors);
            }
        } else {
            command.args(["--port", port]).args(more);
        }
        let (child, errors) = started(&mut command, "engine ready");
        self.watch(child, errors)
    }

    /// Keeps the engine, and what it writes to standard error.
    fn watch(&mut self, engine: Child, mut errors: Errors) -> std::thread::JoinHandle<String> {
        self.engine = Some(engine);
        std::thread::spawn(move || {
            let mut rest = String::new();
            let _ = errors.read_to_string(&mut rest);
            eprint!("{rest}");
            rest
        })
    }

    /// Returns the subcommand of `inlane offload` in the namespace of the engine.
    fn inlane(&self, subcommand: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name("e"), env!("CARGO_BIN_EXE_inlane"), "offload", subcommand]);
        command
    }

    fn offloaded(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args([
            "--kill-after",
            "5",
            LIMIT,
            env!("CARGO_BIN_EXE_inlane"),
            "offload",
            "run",
            "--socket",
        ]);
        command.arg(self.socket()).args(["--", program]).current_dir(self.folder.path());
        command
    }

    fn on_kernel(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after", "5", LIMIT, "ip", "netns", "exec", &self.name("k"), program]);
        command.current_dir(self.folder.path());
        command
    }

    fn status(&self) -> serde_json::Value {
        let output = Command::new(env!("CARGO_BIN_EXE_inlane"))
            .args(["offload", "status", "--json", "-", "--socket"])
            .arg(self.socket())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        document["results"][0].clone()
    }

    /// Returns the value that `inlane offload status` shows for the counter `name` of all connections.
    fn count(&self, name: &str) -> u64 {
        self.status()["connections"][name].as_u64().unwrap()
    }

    fn wait_for_listener(&self, port: u16) {
        let local = format!(":{port}");
        self.wait(&format!("no listener at {local}"), || {
            let status = self.status();
            let sockets = status["sockets"].as_array().unwrap();
            sockets.iter().any(|socket| {
                socket["state"] == "LISTEN" && socket["local"].as_str().unwrap().ends_with(&local)
            })
        });
    }

    fn wait(&self, what: &str, condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(120), "{what}: {}", self.status());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for mut child in self.engine.take().into_iter().chain(self.card.take()) {
            let _ = child.kill();
            let _ = child.wait();
        }
        for side in ["e", "k"] {
            let _ = shell(&format!("ip netns delete {}", self.name(side)));
        }
    }
}

/// What a program writes to standard error.
type Errors = std::io::BufReader<std::process::ChildStderr>;

/// Returns true if all tests of this run give their engines a card.
fn uses_card() -> bool {
    std::env::var_os("INLANE_TEST_CARD").is_some()
}

/// Starts a command and waits for its line that contains `ready`. Returns what it writes to standard error afterwards.
fn started(command: &mut Command, ready: &str) -> (Child, Errors) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut errors, &mut line).unwrap();
    assert!(line.contains(ready), "{line}");
    (child, errors)
}

/// A running program, ended when the value is dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

/// Builds the preloaded library. Cargo puts it beside the command, where `inlane offload run` finds it.
fn build_library() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let mut command = Command::new(env!("CARGO"));
        command.args(["build", "--quiet", "--package", "inlane-preload"]);
        let release =
            Path::new(env!("CARGO_BIN_EXE_inlane")).components().any(|part| part.as_os_str() == "release");
        if release {
            command.arg("--release");
        }
        assert!(command.status().unwrap().success(), "the preloaded library could not be built");
    });
}

fn shell(line: &str) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let output =
        Command::new(words.next().unwrap()).args(words).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn must(command: &mut Command) -> Vec<u8> {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().take(4000).collect::<String>();
    assert!(status.success(), "{command:?}: {status}\n{}\n{}", text(&stdout), text(&stderr));
    stdout
}

fn page(len: u32) -> Vec<u8> {
    (0..len).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3..].to_vec()).collect()
}

/// Starts Python's HTTP server on the kernel's network stack, and waits until it listens. The server serves
/// the directory of `lab`.
fn kernel_web_server(lab: &Lab) -> Running {
    let server = Running::start(
        lab.on_kernel("python3").args(["-m", "http.server", "--bind", "::", "8000"]).stderr(Stdio::null()),
    );
    let start = Instant::now();
    let address = format!("http://{KERNEL}:8000/");
    while !lab.on_kernel("curl").args(["-s", "-o", "/dev/null", &address]).status().unwrap().success() {
        assert!(start.elapsed() < Duration::from_secs(120), "the web server does not start");
        std::thread::sleep(Duration::from_millis(100));
    }
    server
}

#[test]
fn curl_fetches_from_a_kernel_server_over_ipv4_and_ipv6_with_faults() {
    let programs = [("curl", "curl"), ("python3", "python3"), ("ethtool", "ethtool")];
    let Some(mut lab) = Lab::new("curl", &programs) else { return };
    // Turn off checksum offload. Otherwise the kernel would send frames without complete checksums over the
    // veth, and the receiver could not detect a corrupted frame.
    shell(&format!("ip netns exec {} ethtool -K k0 tx off", lab.name("k"))).unwrap();
    lab.serve(&["--faults", "drop=0.5%,duplicate=1%,reorder=1%:3,corrupt=0.5%,seed=3"]);
    let page = page(1_000_000);
    std::fs::write(lab.folder.path().join("page"), &page).unwrap();
    let _server = kernel_web_server(&lab);
    for host in ["10.79.0.2", "[fd79::2]"] {
        let fetched =
            must(lab.offloaded("curl").args(["-sS", "--fail", &format!("http://{host}:8000/page")]));
        assert!(fetched == page, "{host}: the page was altered on its way");
    }
    let script = format!(
        "import subprocess; subprocess.run(['/usr/bin/env', 'curl', '-sS', '--fail', 'http://{KERNEL}:8000/page'], env={{'PATH': '/usr/bin'}}, check=True)"
    );
    let before = lab.count("connected");
    assert!(must(lab.offloaded("python3").args(["-c", &script])) == page);
    assert_eq!(lab.count("connected"), before + 1, "{}", lab.status());

    assert!(lab.count("received_bytes") > 2_000_000, "{}", lab.status());
    assert!(lab.count("connected") >= 2);

    let refused = lab.offloaded("curl").args(["-sS", "http://10.79.0.2:1/"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(7), "curl's status for a refused connection");
    lab.wait("a socket is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

#[test]
fn redis_serves_kernel_clients_and_its_memory_returns_when_it_is_killed() {
    let programs = [("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")];
    let Some(mut lab) = Lab::new("redis", &programs) else { return };
    lab.serve(&[]);
    let mut server = lab.offloaded("redis-server");
    server.args(["--bind", ENGINE, "--port", "6379", "--save", "", "--protected-mode", "no"]);
    let server = Running::start(&mut server);
    lab.wait_for_listener(6379);
    let mut benchmark = lab.on_kernel("redis-benchmark");
    benchmark.args(["-h", ENGINE, "-n", "5000", "-c", "20", "-t", "set,get,lrange_100", "--csv"]);
    let report = String::from_utf8(must(&mut benchmark)).unwrap();
    assert!(report.contains("\"GET\""), "{report}");
    assert!(lab.count("accepted") >= 60 && lab.count("received_bytes") > 200_000, "{}", lab.status());

    let mut client = lab.on_kernel("redis-cli");
    let mut client = client.args(["-h", ENGINE, "subscribe", "x"]).stdout(Stdio::piped()).spawn().unwrap();
    lab.wait("no client", || lab.status()["sockets"].as_array().unwrap().len() == 2);
    drop(server);
    client.wait().unwrap();
    lab.wait("sockets are left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

#[test]
fn nginx_serves_files_with_forked_workers() {
    let programs = [("nginx", "nginx-light"), ("curl", "curl")];
    let Some(mut lab) = Lab::new("nginx", &programs) else { return };
    lab.serve(&[]);
    let folder = lab.folder.path();
    let page = page(3_000_000);
    std::fs::write(folder.join("page"), &page).unwrap();
    let configuration = folder.join("nginx.conf");
    let text = format!(
        "daemon off; worker_processes 2; user root; pid {0}/pid; error_log {0}/errors; events {{}} \
         http {{ access_log off; sendfile on; client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; \
         fastcgi_temp_path {0}/fastcgi; uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi; \
         server {{ listen {ENGINE}:80; root {0}; }} \
         server {{ listen {ENGINE}:81; location / {{ proxy_pass http://{ENGINE}:80; }} }} }}",
        folder.display()
    );
    std::fs::write(&configuration, text).unwrap();
    let mut nginx = lab.offloaded("nginx");
    let _nginx = Running::start(nginx.arg("-c").arg(&configuration).arg("-p").arg(folder));
    lab.wait_for_listener(81);
    // Fetch the page from nginx directly (port 80), and through nginx as a proxy (port 81). Only the proxy's
    // sockets are registered with epoll before they are connected.
    for port in [80, 81] {
        for _ in 0..5 {
            let address = format!("http://{ENGINE}:{port}/page");
            let fetched = must(lab.on_kernel("curl").args(["-sS", "--fail", &address]));
            assert!(fetched == page, "port {port}: the page was altered on its way");
        }
    }
    assert!(lab.count("sent_bytes") > 30_000_000);
}

#[test]
fn iperf_moves_bulk_data_in_both_directions() {
    let Some(mut lab) = Lab::new("iperf", &[("iperf3", "iperf3")]) else { return };
    lab.serve(&[]);
    for (port, more) in [("5201", ["-4", "-n"]), ("5202", ["-R", "-n"])] {
        let _server = Running::start(lab.offloaded("iperf3").args(["-s", "-B", ENGINE, "-p", port, "-1"]));
        lab.wait_for_listener(port.parse().unwrap());
        let mut client = lab.on_kernel("iperf3");
        must(client.args(["-c", ENGINE, "-p", port]).args(more).arg("20M"));
    }
    // Require only half of the 20 MiB, because the client ends a test with a reset. The last segments may
    // then never be acknowledged, so the counters may stay below 20 MiB.
    assert!(lab.count("received_bytes") > 10_000_000 && lab.count("sent_bytes") > 10_000_000);
}

/// Runs a Python script of this project. The script tests the built `inlane`. Prints which tests the script
/// has skipped.
fn project_script(test: &str, script: &str, arguments: &[&str]) {
    build_library();
    let folder = Path::new(env!("CARGO_BIN_EXE_inlane")).parent().unwrap();
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "5", "240", "python3"]);
    command.arg(format!("../../{script}")).args(arguments).arg("--folder").arg(folder);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for line in text(&output.stderr).lines().filter(|line| line.starts_with("SKIPPED")) {
        eprintln!("{}", line.replace(script.rsplit('/').next().unwrap(), test));
    }
    // Status 3 says that this machine has no network namespaces.
    let done = matches!(output.status.code(), Some(0 | 3));
    assert!(done, "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
}

#[test]
fn other_unmodified_programs_give_right_results() {
    let test = "other_unmodified_programs_give_right_results";
    let programs = ["memcached", "openssh", "socat", "--side", "both", "--quick"];
    project_script(test, "packaging/test-programs", &programs);
    // With `--spin`, the engine polls. Programs then poll, too, and share memory with the engine. This must
    // also work in sshd's sandbox, which allows few system calls.
    let polls = ["openssh", "--side", "server", "--quick", "--spin", "300us"];
    project_script(test, "packaging/test-programs", &polls);
}

/// Runs the load test in its quick form: many connections and listeners, a flood of SYNs, and an engine that
/// is killed.
#[test]
fn an_engine_under_load_keeps_its_promises() {
    project_script("an_engine_under_load_keeps_its_promises", "bench/offload/load", &["--quick"]);
}

/// Kills the engine while a program receives. The program must get an error, not the end of the stream. A new
/// engine must serve the program's next sockets.
#[test]
fn a_killed_engine_resets_connections_and_a_new_one_serves_the_same_program() {
    let Some(mut lab) = Lab::new("killed", &[("python3", "python3"), ("curl", "curl")]) else { return };
    lab.serve(&[]);
    let script = "\
import errno, socket, sys, time
def fetch():
    s = socket.create_connection(('10.79.0.2', 8000), 20)
    s.settimeout(20)
    return s
s = fetch()
t = fetch()
t.getsockname()
print('connected', flush=True)
try:
    data = s.recv(10)
    print('end', len(data), flush=True)
except ConnectionResetError:
    print('reset', flush=True)
print('then', len(s.recv(10)), s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), flush=True)
sys.stdin.readline()
try:
    print('local', t.getsockname(), flush=True)
except OSError as error:
    print('local', errno.errorcode[error.errno], flush=True)
s = fetch()
s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
print(s.recv(8).decode(), flush=True)
";
    let _server = kernel_web_server(&lab);
    let mut program = lab.offloaded("python3");
    program.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(program.stdout.take().unwrap()));
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "connected");
    let mut engine = lab.engine.take().unwrap();
    engine.kill().unwrap();
    engine.wait().unwrap();
    assert_eq!(next(), "reset");
    assert_eq!(next(), "then 0 0", "the error is reported once");
    lab.serve(&[]);
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(next(), "local ENOTCONN", "only the killed engine knew the address");
    assert_eq!(next(), "HTTP/1.0");
    assert!(program.wait().unwrap().success());
    assert_eq!(lab.count("connected"), 1);
}

#[test]
fn pythons_own_socket_tests_pass() {
    let test = "pythons_own_socket_tests_pass";
    let python = "/usr/bin/python3";
    let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !quiet(Command::new(python).args(["-c", "import test.test_socket"]))
        .is_ok_and(|status| status.success())
    {
        eprintln!("SKIPPED {test}: Python's tests are missing; apt-get install libpython3.11-testsuite");
        return;
    }
    let Some(mut lab) = Lab::new("python", &[]) else { return };
    lab.serve(&["--loopback", "--spin", "300us"]);
    let mut suite = lab.offloaded(python);
    suite.args([
        "-m",
        "test",
        "-u",
        "network",
        "--timeout",
        "50",
        "-i",
        "test_control_and_wait",
        "-m",
        "*TCP*",
        "-m",
        "*CreateServer*",
        "-m",
        "*FileObject*",
    ]);
    suite.args([
        "-m",
        "*SocketServer*",
        "-m",
        "*Sendfile*",
        "test_socket",
        "test_socketserver",
        "test_selectors",
        "test_epoll",
        "test_poll",
        "test_select",
    ]);
    must(&mut suite);
    assert!(lab.count("received_bytes") > 1_000_000 && lab.count("accepted") > 50, "{}", lab.status());
}

fn process_status(id: u32, names: &[&str]) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let value = |name: &&str| {
        let line = text.lines().find(|line| line.split(':').next() == Some(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    names.iter().map(value).collect()
}

#[test]
fn an_engine_gives_up_its_privileges_and_can_become_another_user() {
    let Some(mut lab) = Lab::new("rights", &[("curl", "curl"), ("python3", "python3")]) else { return };
    std::fs::write(lab.folder.path().join("page"), "text").unwrap();
    let _server = kernel_web_server(&lab);
    for (flags, user) in [(&[][..], "0"), (&["--user", "nobody"], "65534")] {
        lab.serve(flags);
        let id = lab.engine.as_ref().unwrap().id();
        let names = ["Uid", "Gid", "CapEff", "CapPrm", "CapInh", "NoNewPrivs"];
        let none = "0000000000000000";
        // `ip netns exec` replaces itself by the engine, so the child's id is the engine's.
        assert_eq!(process_status(id, &names), [user, user, none, none, none, "1"]);
        let fetched = must(lab.offloaded("curl").args(["-sS", &format!("http://{KERNEL}:8000/page")]));
        assert_eq!(fetched, b"text");
        assert_eq!(lab.count("connected"), 1);
        let mut engine = lab.engine.take().unwrap();
        // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
        unsafe { libc::kill(id as i32, libc::SIGTERM) };
        assert!(engine.wait().unwrap().success());
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
    command.args([
        "offload",
        "serve",
        "--port",
        "ring:x",
        "--address",
        "10.0.0.1/24",
        "--user",
        "no-such-user",
    ]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--user no-such-user") && said.contains("no such user"), "{said}");
}

/// Runs the checks of sockets in `programs/sockets.py` on the engine. The kernel's sockets pass the same
/// checks.
#[test]
fn sockets_behave_as_programs_expect() {
    let Some(mut lab) = Lab::new("sockets", &[("python3", "python3")]) else { return };
    lab.serve(&["--loopback"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sockets.py");
    let said = String::from_utf8(must(lab.offloaded("python3").arg(script))).unwrap();
    assert!(said.contains("connections over pairs of the library: 23\n"), "{said}");
    assert!(lab.count("received_bytes") > 8000 && lab.count("connected") >= 200, "{}", lab.status());
}

#[test]
fn rules_and_requirements_decide_who_runs_a_socket() {
    let programs = [("curl", "curl"), ("python3", "python3")];
    let Some(mut lab) = Lab::new("rules", &programs) else { return };
    lab.serve(&[]);
    std::fs::write(lab.folder.path().join("page"), "text").unwrap();
    let _server = kernel_web_server(&lab);
    let address = format!("http://{KERNEL}:8000/page");
    let rules = lab.folder.path().join("rules.toml");
    std::fs::write(&rules, "[[rule]]\nrun_by = \"kernel\"\nprogram = \"curl\"\nport = 8000\n").unwrap();
    let run = |flags: &[&str], program: &[&str]| {
        let mut command = Command::new("timeout");
        command.args([LIMIT, env!("CARGO_BIN_EXE_inlane"), "offload", "run", "--socket"]);
        command.arg(lab.socket()).args(flags).arg("--").args(program).output().unwrap()
    };
    // Ignore curl's exit status. Whether the kernel can connect depends on the machine.
    run(&["--rules", rules.to_str().unwrap()], &["curl", "-sS", "-m", "2", &address]);
    assert_eq!(lab.count("connected"), 0);
    let kernel = &lab.status()["kernel"][0];
    assert!(kernel["program"] == "curl" && kernel["reason"].as_str().unwrap().contains("rule"), "{kernel}");

    let required = run(&["--require"], &["curl", "-sS", "-m", "60", &address]);
    assert_eq!(required.stdout, b"text", "{required:?}");
    let outside = run(&["--require"], &["curl", "-sS", "-m", "60", "http://127.0.0.1:9/"]);
    let said = String::from_utf8_lossy(&outside.stderr);
    assert!(said.contains("--require") && said.contains("loopback"), "{said}");
    assert!(lab.count("connected") == 1);
}

/// `inlane nvme` works over the engine, although io_uring bypasses the preloaded library. It connects and
/// accepts by functions of the C library. There, the preloaded library replaces the socket by the program's
/// end of a socket pair. io_uring then works on the program's end.
#[test]
fn nvme_target_and_initiator_run_over_the_engine() {
    let Some(mut lab) = Lab::new("nvme", &[]) else { return };
    let inlane = env!("CARGO_BIN_EXE_inlane");
    lab.serve(&[]);
    let data = page(3_000_000 / 512 * 512);
    std::fs::write(lab.folder.path().join("data"), &data).unwrap();
    let bench = ["--rw", "randrw", "--bs", "16K", "--iodepth", "8", "--size", "4M", "--verify", "crc32c"];
    // Two rounds: the target over the engine and the initiator over the kernel, then the other way round.
    for target_is_offloaded in [true, false] {
        let side = |offloaded: bool| if offloaded { lab.offloaded(inlane) } else { lab.on_kernel(inlane) };
        let address = if target_is_offloaded { ENGINE } else { KERNEL };
        let mut target = side(target_is_offloaded);
        target.args(["nvme", "target", "--threads", "2", "--namespace", "memory:16M", "--listen"]);
        let mut target = target.arg(format!("{address}:4420")).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut errors = std::io::BufReader::new(target.stderr.take().unwrap());
        std::io::BufRead::read_line(&mut errors, &mut line).unwrap();
        // Read the rest of the target's standard error, because the target would block on a full pipe.
        std::thread::spawn(move || errors.read_to_end(&mut Vec::new()));
        let _target = Running(target);
        assert!(line.contains("listens on"), "{line}");
        let before = lab.count("accepted") + lab.count("connected");
        let initiator = || side(!target_is_offloaded);
        must(initiator().args(["nvme", "write", address, "data"]));
        let length = data.len().to_string();
        let read =
            must(initiator().args(["nvme", "read", address, "--digests", "both", "--length", &length, "-"]));
        assert!(read == data, "the data was altered on its way");
        must(initiator().args(["nvme", "bench", address, "--numjobs", "2"]).args(bench));
        // At least 10 connections: three each for write and read (discovery, admin queue, I/O queue), and two
        // for each of bench's two jobs (admin queue, I/O queue).
        assert!(lab.count("accepted") + lab.count("connected") >= before + 10, "{}", lab.status());
    }
}
