//! Tests jobs over UCX in the way that users start them: the choice of the transport, its errors, and PEs on
//! two machines. Network namespaces replace the machines.

mod support;

use inlane_pgas::transport::ucx::Ucx;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const INLANE: &str = env!("CARGO_BIN_EXE_inlane");

/// Returns true if UCX is installed. Otherwise prints that the test is skipped.
fn has_ucx(test: &str) -> bool {
    let found = Ucx::version();
    if let Err(error) = &found {
        eprintln!("SKIPPED {test}: {error}");
    }
    found.is_ok()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn check(pes: &str, options: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(INLANE);
    command
        .args(["ntb", "run", "-n", pes])
        .args(options)
        .args(["--", INLANE, "ntb", "check", "--rounds", "1"]);
    command.envs(variables.iter().copied()).output().unwrap()
}

#[test]
fn the_transport_is_chosen_by_flag_or_variable() {
    if !has_ucx("the_transport_is_chosen_by_flag_or_variable") {
        return;
    }
    let variable = [("INLANE_NTB_TRANSPORT", "ucx")];
    for (options, variables, name) in [
        (&["--transport", "ucx"][..], &[][..], "ntb check: ucx, PE"),
        (&[], &variable, "ntb check: ucx, PE"),
        (&["--transport", "windows"], &variable, "ntb check: twin, PE"),
        (&[], &[], "ntb check: twin, PE"),
    ] {
        let output = check("2", options, variables);
        assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
        let lines = text(&output.stdout).lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(lines, 2, "{options:?} {variables:?}: {}", text(&output.stdout));
    }
}

#[test]
fn wrong_settings_are_refused() {
    for (options, variables, status, expected) in [
        (&["--transport", "smoke"][..], &[][..], 2, "possible values: windows, ucx"),
        (&[], &[("INLANE_NTB_TRANSPORT", "smoke")][..], 2, "INLANE_NTB_TRANSPORT=smoke"),
        (&["--transport", "ucx", "--faults", "torn"], &[], 2, "--faults"),
        (&["--transport", "ucx", "--mover", "twin"], &[], 2, "--mover"),
        (&["--address", "127.0.0.1"], &[], 2, "--address 127.0.0.1"),
        (&["--transport", "ucx", "--address", "192.0.2.1"], &[], 3, "an address of this machine"),
    ] {
        let output = check("2", options, variables);
        assert_eq!(output.status.code(), Some(status), "{options:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{options:?}: {}", text(&output.stderr));
    }
}

#[test]
fn bench_refuses_a_mover_over_ucx() {
    for mover in [&["--mover", "twin"][..], &["--only", "mover", "--sizes", "64K"]] {
        let output =
            Command::new(INLANE).args(["ntb", "bench", "--transport", "ucx"]).args(mover).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{mover:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains("ucx has no mover"), "{mover:?}: {}", text(&output.stderr));
    }
}

#[test]
fn transports_that_do_not_reach_a_pe_are_an_error() {
    if !has_ucx("transports_that_do_not_reach_a_pe_are_an_error") {
        return;
    }
    let output = check("2", &["--transport", "ucx"], &[("UCX_TLS", "self")]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("UCX_TLS"), "{}", text(&output.stderr));
}

/// Two network namespaces that are joined by a veth pair.
struct Machines([String; 2]);

impl Machines {
    fn new(test: &str) -> Option<Self> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED {test}: network namespaces need root");
            return None;
        }
        let machines = Self([0, 1].map(|number| format!("inlane-ucx-{}-{number}", std::process::id())));
        let [first, second] = &machines.0;
        if !ip(&format!("netns add {first}")) || !ip(&format!("netns add {second}")) {
            eprintln!("SKIPPED {test}: no network namespace (ip netns add; apt-get install iproute2)");
            return None;
        }
        assert!(ip(&format!("link add v0 netns {first} type veth peer name v1 netns {second}")), "veth");
        for (number, name) in machines.0.iter().enumerate() {
            assert!(ip(&format!("-n {name} addr add 10.77.0.{}/24 dev v{number}", number + 1)), "address");
            assert!(ip(&format!("-n {name} link set v{number} up")), "link");
            assert!(ip(&format!("-n {name} link set lo up")), "loopback");
        }
        // Wait until both interfaces are in state UP, because UCX ignores other interfaces. The kernel sets
        // the state shortly after both ends of the veth pair are up.
        for (number, name) in machines.0.iter().enumerate() {
            let show = format!("-n {name} link show v{number}");
            support::until("the link", || {
                let output = Command::new("ip").args(show.split(' ')).output().unwrap();
                text(&output.stdout).contains("state UP")
            });
        }
        Some(machines)
    }

    fn run(&self, script: &str) -> Output {
        let [first, second] = &self.0;
        let place = format!("name={first}; [ $((INLANE_NTB_PE % 2)) = 0 ] || name={second}; ");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", first, INLANE, "ntb", "run", "-n", "4", "--transport", "ucx"]);
        command.args(["--address", "10.77.0.1", "--", "sh", "-c", &format!("{place}{script}")]);
        command.env("UCX_TLS", "tcp,self").env("INLANE", INLANE).output().unwrap()
    }

    /// Runs a command with Open MPI's mpirun as two PEs, one on each machine. A machine is a network
    /// namespace. mpirun starts processes there with a script that this function writes to `folder`. Returns
    /// `None` if mpirun is missing.
    fn mpirun(&self, folder: &Path, command: &[&str]) -> Option<Output> {
        let agent = folder.join("agent");
        // Give each machine its own directory for temporary files. Otherwise mpirun's processes on both
        // machines would create the same directory at the same time.
        let script = "#!/bin/sh\nname=$1; shift; export TMPDIR=$TMPDIR/$name; mkdir -p $TMPDIR\n\
                      exec ip netns exec $name sh -c \"$*\"\n";
        std::fs::write(&agent, script).unwrap();
        std::fs::set_permissions(&agent, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let [first, second] = &self.0;
        let mut mpirun = Command::new("timeout");
        mpirun.args([
            "-k",
            "1",
            "100",
            "ip",
            "netns",
            "exec",
            first,
            "mpirun.openmpi",
            "--allow-run-as-root",
        ]);
        mpirun.args(["--mca", "plm_rsh_agent"]).arg(&agent);
        // Without `none`, mpirun binds the PEs of both machines to the same processor, because both are this machine.
        mpirun.args(["--bind-to", "none"]);
        mpirun.args(["-np", "2", "--map-by", "node", "-H", &format!("{first},{second}")]);
        let output = mpirun.args(command).env("UCX_TLS", "tcp,self").env("TMPDIR", folder).output().unwrap();
        (output.status.code() != Some(127)).then_some(output)
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&format!("netns delete {name}"));
        }
    }
}

fn ip(line: &str) -> bool {
    let status = Command::new("ip").args(line.split_whitespace()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

#[test]
fn pes_on_two_machines_form_a_job() {
    let test = "pes_on_two_machines_form_a_job";
    if !has_ucx(test) {
        return;
    }
    let Some(machines) = Machines::new(test) else { return };
    let output = machines.run("exec ip netns exec $name $INLANE ntb check --rounds 2");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found = text(&output.stdout);
    assert_eq!(found.lines().filter(|line| line.ends_with(", ok")).count(), 4, "{found}");

    let killed = "[ $INLANE_NTB_PE != 3 ] || kill -9 $$; exec ip netns exec $name $INLANE ntb check";
    let output = machines.run(killed);
    assert_eq!(output.status.code(), Some(128 + 9), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("PE 3 was killed by signal 9"), "{}", text(&output.stderr));
    assert_eq!(output.status.signal(), None);
}

#[test]
fn mpirun_on_two_machines_starts_one_job_over_ucx() {
    let test = "mpirun_on_two_machines_starts_one_job_over_ucx";
    if !has_ucx(test) {
        return;
    }
    let Some(machines) = Machines::new(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = |command: &[&str]| machines.mpirun(folder.path(), command);
    match run(&["true"]) {
        Some(output) if output.status.success() => {}
        Some(output) => {
            eprintln!("SKIPPED {test}: mpirun does not start 'true': {}", text(&output.stderr));
            return;
        }
        None => {
            eprintln!("SKIPPED {test}: mpirun is missing; apt-get install openmpi-bin");
            return;
        }
    }
    // Open MPI logs its own failures with `ORTE_ERROR_LOG`. Skip the test then, because inlane is not the
    // cause.
    let failed = |output: &Output| {
        let fault = !output.status.success() && text(&output.stderr).contains("ORTE_ERROR_LOG");
        if fault {
            eprintln!("SKIPPED {test}: mpirun failed: {}", text(&output.stderr));
        }
        fault
    };
    let output = run(&[INLANE, "ntb", "check", "--rounds", "2"]).unwrap();
    if failed(&output) {
        return;
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found = text(&output.stdout);
    let lines = found.lines().filter(|line| line.starts_with("ntb check: ucx") && line.ends_with(", ok"));
    assert_eq!(lines.count(), 2, "{found}");

    let bench =
        [INLANE, "ntb", "bench", "--sizes", "8,64K", "--duration", "1ms", "--repeats", "1", "--json", "-"];
    let output = run(&bench).unwrap();
    if failed(&output) {
        return;
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &document["results"][0]["path"];
    assert_eq!(row["name"], "ucx (tcp)", "{row}");
    let reason = row["reason"].as_str().unwrap();
    assert!(reason.contains("the PEs run on several machines"), "{row}");
}

#[test]
fn bench_and_info_name_what_ucx_takes() {
    if !has_ucx("bench_and_info_name_what_ucx_takes") {
        return;
    }
    let json = |arguments: &[&str], methods: &str| {
        let mut command = Command::new(INLANE);
        let output = command.args(arguments).args(["--json", "-"]).env("UCX_TLS", methods).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let info = json(&["ntb", "info", "--transport", "ucx"], "tcp,self");
    let found = &info["results"][0];
    assert_eq!(found["capabilities"]["methods"], serde_json::json!(["tcp"]), "{found}");
    assert_eq!(found["variables"], serde_json::json!(["UCX_TLS=tcp,self"]), "{found}");
    assert_eq!(found["capabilities"]["mapped_pes"], 1, "only PE 0's own memory: {found}");
    assert_eq!(info["twin"], false);
    let info = json(&["ntb", "info", "--transport", "ucx"], "shm,self");
    assert_eq!(info["results"][0]["capabilities"]["mapped_pes"], 2, "{info}");
    let quick =
        ["ntb", "bench", "--transport", "ucx", "--sizes", "8,4K", "--duration", "1ms", "--repeats", "1"];
    for (methods, mapped) in [("tcp,self", false), ("shm,self", true)] {
        let bench = json(&quick, methods);
        let rows = bench["results"].as_array().unwrap();
        let operations: Vec<_> = rows.iter().map(|row| row["operation"].as_str().unwrap()).collect();
        for operation in ["put", "get", "fetch_add", "one_way", "put_delivered", "exchange", "messages"] {
            assert!(operations.contains(&operation), "{operation} over {methods}: {operations:?}");
        }
        // The bench measures plain copies only if the peer's memory is mapped, because plain copies reach no
        // other memory.
        assert_eq!(operations.contains(&"plain_copy"), mapped, "{operations:?}");
        assert!(rows.iter().all(|row| row["verification"]["altered_bytes"] == 0));
        let reason = rows[0]["path"]["reason"].as_str().unwrap();
        assert!(reason.starts_with("over ucx, because"), "{reason}");
    }
}
