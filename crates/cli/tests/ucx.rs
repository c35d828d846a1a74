//! Tests jobs over UCX as users start them: the choice of the transport, its errors, and PEs on two machines.
//! A network namespace stands for each machine.

mod support;

use inlane_pgas::transport::ucx::Ucx;
use std::os::unix::process::ExitStatusExt;
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

/// Runs the check of the transport with `pes` PEs. `options` are those of `ntb run`.
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
        (&["--transport", "smoke"][..], &[][..], 2, "choose one of windows, ucx"),
        (&[], &[("INLANE_NTB_TRANSPORT", "smoke")][..], 2, "INLANE_NTB_TRANSPORT=smoke"),
        (&["--transport", "ucx", "--faults", "torn"], &[], 2, "--faults"),
        (&["--transport", "ucx", "--mover", "twin"], &[], 2, "--mover"),
        (&["--transport", "ucx", "--address", "192.0.2.1"], &[], 3, "an address of this machine"),
    ] {
        let output = check("2", options, variables);
        assert_eq!(output.status.code(), Some(status), "{options:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{options:?}: {}", text(&output.stderr));
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
        // this state shortly after both ends of the pair are up.
        for (number, name) in machines.0.iter().enumerate() {
            let show = format!("-n {name} link show v{number}");
            support::until("the link", || {
                let output = Command::new("ip").args(show.split(' ')).output().unwrap();
                text(&output.stdout).contains("state UP")
            });
        }
        Some(machines)
    }

    /// Runs a script as four PEs, two on each machine, over TCP.
    fn run(&self, script: &str) -> Output {
        let [first, second] = &self.0;
        let place = format!("name={first}; [ $((INLANE_NTB_PE % 2)) = 0 ] || name={second}; ");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", first, INLANE, "ntb", "run", "-n", "4", "--transport", "ucx"]);
        command.args(["--address", "10.77.0.1", "--", "sh", "-c", &format!("{place}{script}")]);
        command.env("UCX_TLS", "tcp,self").env("INLANE", INLANE).output().unwrap()
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

    // A PE that is killed on the other machine ends the job.
    let killed = "[ $INLANE_NTB_PE != 3 ] || kill -9 $$; exec ip netns exec $name $INLANE ntb check";
    let output = machines.run(killed);
    assert_eq!(output.status.code(), Some(128 + 9), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("PE 3 was killed by signal 9"), "{}", text(&output.stderr));
    assert_eq!(output.status.signal(), None);
}
