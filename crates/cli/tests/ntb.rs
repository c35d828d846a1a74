//! Tests the command `inlane ntb`: jobs and their exit statuses, PEs that die at every step, and restarts.

use inlane_ntb::device::Ntb;
use inlane_ntb::error::Error as Bridge;
use inlane_ntb::fault::Faults;
use inlane_ntb::twin::{Hub, Twin};
use inlane_pgas::error::Error;
use inlane_pgas::transport::windows::layout::Layout;
use inlane_pgas::transport::windows::{Settings, Windows};
use inlane_pgas::world::World;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const INLANE: &str = env!("CARGO_BIN_EXE_inlane");

fn inlane(arguments: &[&str]) -> Output {
    Command::new(INLANE).args(arguments).output().expect("inlane starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_signal_to_the_launcher_ends_all_pes_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'touch ended.$INLANE_NTB_PE; exit' TERM; touch begun.$INLANE_NTB_PE; while :; do sleep 0.05; done";
    let exist = |what: &str| (0..2).all(|pe| folder.path().join(format!("{what}.{pe}")).exists());
    let mut launcher = Command::new(INLANE)
        .args(["ntb", "run", "-n", "2", "--", "sh", "-c", script])
        .current_dir(folder.path())
        .spawn()
        .unwrap();
    while !exist("begun") {
        assert_eq!(launcher.try_wait().unwrap(), None, "the job runs until it is ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let process = rustix::process::Pid::from_child(&launcher);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    assert_eq!(launcher.wait().unwrap().signal(), Some(2));
    assert!(exist("ended"), "each PE is asked to end");
}

/// Linux executes one membarrier(2) of this kind at a time, and each interrupts all processors that run PEs. Jobs of
/// many PEs were a hundred times slower with it. The kernel kills each process of this job that makes such a call.
#[test]
fn sleeping_pes_interrupt_no_other_processors() {
    let statement = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_membarrier as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let mut job = Command::new(INLANE);
    job.args(["ntb", "run", "-n", "3", "--", INLANE, "ntb", "check", "--completion", "interrupt"]);
    // SAFETY: the closure makes system calls only, and `filter` and `program` live until the calls return.
    unsafe {
        job.pre_exec(move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
            let filtered = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
            if filtered { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        })
    };
    let output = job.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_job_ends_as_its_first_failure() {
    let run = |script: &str| inlane(&["ntb", "run", "-n", "3", "--", "sh", "-c", script]);
    assert_eq!(run("exit 0").status.code(), Some(0));
    let seven = run("exit 7");
    assert_eq!(seven.status.code(), Some(7));
    assert!(stderr(&seven).contains("ended with status 7"), "{}", stderr(&seven));
    // PE 1 is killed. The launcher must then end the other PEs. Otherwise they would run for a minute.
    let start = Instant::now();
    let killed = inlane(&[
        "ntb",
        "run",
        "-n",
        "3",
        "--faults",
        "die=attach",
        "--faulty",
        "1",
        "--",
        INLANE,
        "ntb",
        "check",
    ]);
    assert_eq!(killed.status.code(), Some(128 + 9), "{}", stderr(&killed));
    assert!(stderr(&killed).contains("PE 1 was killed by signal 9"));
    assert!(start.elapsed() < Duration::from_secs(60));
    let missing = inlane(&["ntb", "run", "--", "/no/such/program"]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(stderr(&missing).contains("'/no/such/program'"), "{}", stderr(&missing));
    assert_eq!(inlane(&["ntb", "run", "-n", "0", "--", "true"]).status.code(), Some(2));
    for wrong in [&["--faults", "tear"][..], &["--faulty", "1"], &["--faults", "torn", "--faulty", "2"]] {
        let output = inlane(&[&["ntb", "run"], wrong, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", stderr(&output));
    }
    let bench = inlane(&["ntb", "bench", "--only", "puts", "--sizes", "8", "--ucx", "/no/such/program"]);
    assert_eq!(bench.status.code(), Some(3), "{}", stderr(&bench));
}

#[test]
fn jobs_pass_the_check_with_and_without_faults() {
    for (pes, faults) in [("2", ""), ("4", ""), ("3", "delay=10us,reorder,torn,lose=0.3,early=0.3,stale=0.1")]
    {
        let output = inlane(&[
            "ntb", "run", "-n", pes, "--faults", faults, "--", INLANE, "ntb", "check", "--rounds", "2",
        ]);
        assert_eq!(output.status.code(), Some(0), "{pes} {faults}: {}", stderr(&output));
    }
    let alone = inlane(&["ntb", "check"]);
    assert_eq!(alone.status.code(), Some(2), "nothing can be checked between fewer than two PEs");
    assert!(stderr(&alone).contains("inlane ntb run -n 2 -- inlane ntb check"), "{}", stderr(&alone));
}

#[test]
fn a_mover_copies_bulk_data() {
    for mover in [&["--mover", "twin"][..], &["--mover", "twin:30G", "--mover-from", "4K"]] {
        let check = ["--", INLANE, "ntb", "check", "--rounds", "2"];
        let output = inlane(&[&["ntb", "run", "-n", "2"], mover, &check].concat());
        assert_eq!(output.status.code(), Some(0), "{mover:?}: {}", stderr(&output));
    }
    for wrong in [&["--mover", "horse"][..], &["--mover", "twin:30M/s"], &["--mover-from", "4K"]] {
        let output = inlane(&[&["ntb", "run"], wrong, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", stderr(&output));
    }
    let gpu = inlane(&["ntb", "run", "--mover", "gpu:0", "--", "true"]);
    assert_eq!(gpu.status.code(), Some(2));
    assert!(stderr(&gpu).contains("inlane ntb bench --mover gpu:N"), "{}", stderr(&gpu));
}

#[test]
fn info_shows_the_back_end_and_why_it_was_chosen() {
    let output = inlane(&["ntb", "info", "--mover", "twin"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for line in ["twin: the default back-end", "64 bits, 2 vectors", "loads at all sizes", "a model's"] {
        assert!(text.contains(line), "'{line}' is not in {text}");
    }
    let output = inlane(&["ntb", "info", "--json", "-"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &document["results"][0];
    assert_eq!((&document["twin"], &row["capabilities"]["name"]), (&true.into(), &"twin".into()));
    assert!(row["path"]["reason"].as_str().unwrap().starts_with("the default back-end; "), "{row}");
    assert!(row["thresholds"]["mover_from_bytes"].is_null(), "no mover was asked for");
    assert_eq!(inlane(&["ntb", "info", "--mover", "horse"]).status.code(), Some(2));
}

#[test]
fn bench_rows_count_what_was_moved_and_what_was_compared() {
    if std::thread::available_parallelism().map_or(1, |count| count.get()) < 2 {
        eprintln!("SKIPPED: a bench needs two processors");
        return;
    }
    let output =
        inlane(&["ntb", "bench", "--sizes", "8,4K", "--duration", "500us", "--repeats", "2", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["notes"].to_string().contains("these figures are a model's"), "{}", document["notes"]);
    let rows = document["results"].as_array().unwrap();
    let row = |operation: &str, size: u64| {
        let found = rows.iter().find(|row| row["operation"] == operation && row["size_bytes"] == size);
        found.unwrap_or_else(|| panic!("no row of {operation} with {size} bytes"))
    };
    let bytes = |row: &serde_json::Value, what: &str| row["verification"][what].as_u64().unwrap();
    // The latency of 8 bytes (`one_way`) is measured by round trips. Each word that comes back is compared,
    // so all transferred bytes are verified.
    let word = row("one_way", 8);
    assert_eq!(bytes(word, "verified_bytes"), bytes(word, "transferred_bytes"));
    assert!(bytes(word, "verified_bytes") >= 2 * 2 * 8);
    // These cases make many transfers of 4096 bytes, but compare the bytes of only one transfer. So exactly
    // 4096 bytes are verified.
    for operation in ["put", "plain_copy", "put_delivered"] {
        let row = row(operation, 4096);
        assert_eq!(bytes(row, "verified_bytes"), 4096, "{operation}");
        assert!(bytes(row, "transferred_bytes") > 4096, "{operation}");
        assert!(row["path"]["reason"].as_str().unwrap().starts_with("the default back-end"), "{operation}");
    }
    assert_eq!(row("put", 4096)["delivery"], "issued");
    assert!(row("put", 4096)["latency_ns"].is_null(), "issued stores have no latency");
    let delivered = row("put_delivered", 4096);
    assert!(delivered["latency_percentiles"]["p99_ns"].as_f64().unwrap() > 0.0);
    assert!(delivered["ceiling"]["bytes_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_figure_of_puts_alone_compares_them_with_a_plain_copy() {
    if std::thread::available_parallelism().map_or(1, |count| count.get()) < 2 {
        eprintln!("SKIPPED: a bench needs two processors");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let figure = folder.path().join("figure.svg");
    let arguments = ["ntb", "bench", "--only", "puts", "--sizes", "8,4K", "--duration", "500us", "--svg"];
    let output = inlane(&[&arguments[..], &[figure.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let figure = std::fs::read_to_string(figure).unwrap();
    for text in ["puts, issued", "put, issued", "plain copy"] {
        assert!(figure.contains(text), "{text}");
    }
}

#[test]
fn a_bench_opens_its_outputs_first_and_leaves_none_empty() {
    for flag in ["--json", "--csv", "--svg"] {
        let output = inlane(&["ntb", "bench", flag, "/nonexistent/file"]);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert!(stderr(&output).contains("cannot write /nonexistent/file"), "{}", stderr(&output));
    }
    let folder = tempfile::tempdir().unwrap();
    let result = folder.path().join("result.json");
    let mut command = Command::new(INLANE);
    command.args(["ntb", "bench", "--repeats", "1000", "--json"]).arg(&result);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = std::time::Instant::now();
    while !result.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "the bench has not opened its output");
        std::thread::sleep(Duration::from_millis(10));
    }
    // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGINT));
    assert!(!result.exists());
}

/// Starts `inlane ntb check` in a process that uses port `port` of the twin `hub`, with faults injected.
fn child(hub: &Hub, port: u32, faults: &str) -> Child {
    let socket = hub.admit(port).unwrap();
    let fd = socket.as_raw_fd();
    let mut command = Command::new(INLANE);
    command.args(["ntb", "check", "--rounds", "3"]).env("INLANE_NTB_MEETING", format!("windows:{fd}"));
    command.env("INLANE_NTB_PE", port.to_string());
    command.env("INLANE_NTB_FAULTS", faults).env("INLANE_NTB_YIELD", "1");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: the closure runs between fork and exec. It only calls fcntl, which is allowed there.
    unsafe {
        command.pre_exec(move || {
            libc::fcntl(fd, libc::F_SETFD, 0);
            Ok(())
        });
    }
    command.spawn().unwrap()
}

fn bytes() -> usize {
    Layout::overhead(2) + World::<Windows>::symmetric_bytes(2, 0, 1 << 20)
}

/// Returns settings that make each PE execute the atomics on its own memory, and reply to the requesting PE.
/// This test needs them because some PEs must die before they reply.
fn settings() -> Settings {
    let connect_timeout = Duration::from_secs(5);
    Settings { connect_timeout, yields: true, atomics_by_owner: true, ..Settings::default() }
}

fn survivor(hub: &Hub) -> Arc<dyn Ntb> {
    Arc::new(Twin::attach(hub.admit(0).unwrap(), &Faults::default()).unwrap())
}

#[test]
fn a_peer_killed_at_any_step_ends_in_an_error() {
    for step in ["attach", "hello", "ready", "connected", "request", "reply", "notify", "quiet", "sleep"] {
        let hub = Hub::new(2, 1 << 30).unwrap();
        let ntb = survivor(&hub);
        let mut peer = child(&hub, 1, &format!("die={step}"));
        let start = Instant::now();
        let outcome = Windows::connect(ntb, bytes(), settings())
            .and_then(|windows| World::new(windows, 0, 0))
            .and_then(|world| inlane_pgas::check::run(&world, 1000));
        let took = start.elapsed();
        let _ = peer.kill();
        let died = peer.wait().unwrap();
        assert!(took < Duration::from_secs(300), "{step}: {took:?}");
        match outcome {
            Err(Error::LinkLost { peer: 1, .. } | Error::Ntb(Bridge::Handshake { peer: 1, .. })) => {}
            other => panic!("{step}: {other:?}, the peer ended with {died}"),
        }
    }
}

#[test]
fn a_peer_that_restarts_can_be_connected_again() {
    let hub = Hub::new(2, 1 << 30).unwrap();
    let ntb = survivor(&hub);
    let mut first = child(&hub, 1, "die=quiet");
    let windows = Windows::connect(ntb, bytes(), settings()).unwrap();
    let world = World::new(windows, 0, 0).unwrap();
    let lost = inlane_pgas::check::run(&world, 1000);
    assert!(matches!(lost, Err(Error::LinkLost { .. })), "{lost:?}");
    first.wait().unwrap();
    // Check that a handshake with the dead peer fails. The old values in its scratchpads must not count as a
    // connection.
    let early = world.transport().reconnect(1, Duration::from_millis(300));
    assert!(matches!(early, Err(Error::Ntb(Bridge::Handshake { .. }))), "{early:?}");
    let mut second = child(&hub, 1, "");
    let windows = world.into_transport();
    let lost = windows.reconnect(1, Duration::from_secs(10)).unwrap();
    assert!(lost.delivered_bytes <= lost.issued_bytes);
    let world = World::new(windows, 0, 0).unwrap();
    inlane_pgas::check::run(&world, 3).unwrap();
    world.leave().unwrap();
    assert!(second.wait().unwrap().success());
}
