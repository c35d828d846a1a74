//! inlane between two hosts: ping, iperf3, and curl with nginx communicate through inlane in both directions.
//! The hosts are network namespaces.
//!
//! ```text
//!   namespace A                 namespace M                      namespace B
//!   10.77.0.1  a0 ====veth==== am   inlane forward   bm ====veth==== b0  10.77.0.2      (AF_XDP, packet sockets)
//!   10.77.0.1  ta ---------------- inlane forward ------------------ tb  10.77.0.2      (tap interfaces, moved to A and B)
//! ```
//!
//! Without root, or without one of the programs, a test prints why and is skipped.

mod support;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::until_thread_runs;

const ADDRESS_A: &str = "10.77.0.1";
const ADDRESS_B: &str = "10.77.0.2";

/// Three network namespaces, deleted when the value is dropped.
struct Hosts {
    prefix: String,
}

impl Hosts {
    fn new(test: &str) -> Option<Self> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED {test}: network namespaces need root");
            return None;
        }
        for (program, package) in [
            ("ip", "iproute2"),
            ("ping", "iputils-ping"),
            ("ethtool", "ethtool"),
            ("iperf3", "iperf3"),
            ("nginx", "nginx-light"),
            ("curl", "curl"),
        ] {
            if Command::new(program)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_err()
            {
                eprintln!("SKIPPED {test}: the program {program} is missing; apt-get install {package}");
                return None;
            }
        }
        let hosts = Self { prefix: format!("inlane-{test}-{}", std::process::id()) };
        for host in ["a", "m", "b"] {
            if let Err(error) = shell(&format!("ip netns add {}", hosts.name(host))) {
                eprintln!("SKIPPED {test}: no network namespace: {error}");
                return None;
            }
            hosts.must(host, "ip link set lo up");
        }
        Some(hosts)
    }

    fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    fn on(&self, host: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host), program]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, host: &str, line: &str) -> Output {
        let mut words = line.split_whitespace();
        self.on(host, words.next().unwrap()).args(words).output().unwrap()
    }

    /// Runs a command line on a host. Fails the test if the command fails. Returns the output.
    fn must(&self, host: &str, line: &str) -> String {
        let output = self.run(host, line);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Connects A and B to M by veth pairs. Disables their offloads, because inlane forwards frames unchanged
    /// and no network card follows that could complete checksums or segment large frames.
    fn cables(&self) {
        for (host, near, far) in [("a", "a0", "am"), ("b", "b0", "bm")] {
            let (there, middle) = (self.name(host), self.name("m"));
            shell(&format!("ip link add {near} netns {there} type veth peer name {far} netns {middle}"))
                .unwrap();
            self.must(host, &format!("ethtool -K {near} tx off tso off gso off gro off"));
            self.must("m", &format!("ip link set {far} up"));
        }
        self.address("a0", "b0");
    }

    fn address(&self, a: &str, b: &str) {
        self.must("a", &format!("ip address add {ADDRESS_A}/24 dev {a}"));
        self.must("b", &format!("ip address add {ADDRESS_B}/24 dev {b}"));
        self.must("a", &format!("ip link set {a} up"));
        self.must("b", &format!("ip link set {b} up"));
    }

    fn start(&self, host: &str, program: &str, arguments: &[&str]) -> Running {
        Running {
            child: Some(self.on(host, program).args(arguments).spawn().unwrap()),
            name: program.to_owned(),
        }
    }

    fn traffic(&self, folder: &Path) {
        let start = Instant::now();
        while !self.run("a", &format!("ping -c 1 -W 1 {ADDRESS_B}")).status.success() {
            assert!(start.elapsed() < Duration::from_secs(60), "no ping is answered");
        }
        for size in ["16", "1472"] {
            // After its last packet, ping waits only for twice the longest round trip. On a busy machine replies come later,
            // so it must lose nothing in one of several runs.
            let line = format!("ping -c 10 -i 0.05 -W 30 -M do -s {size} {ADDRESS_B}");
            while let text = self.must("a", &line)
                && !text.contains(" 0% packet loss")
            {
                assert!(start.elapsed() < Duration::from_secs(60), "{text}");
            }
        }
        self.must("b", &format!("ping -c 3 -i 0.05 -W 30 {ADDRESS_A}"));

        let _server = self.start("b", "iperf3", &["-s"]);
        self.iperf("-t 2");
        self.iperf("-t 2 -R");
        for way in ["", "-R"] {
            let report = self.iperf(&format!("-u -b 20M -l 1200 -t 2 {way}"));
            let sum = &report["end"]["sum"];
            let (lost, all) = (sum["lost_packets"].as_f64().unwrap(), sum["packets"].as_f64().unwrap());
            // On a busy machine, a queue may overflow while inlane is not scheduled, so allow a loss of half
            // of the packets. If inlane corrupted packets, nearly all of them would be lost.
            assert!(all > 100.0 && lost / all < 0.5, "UDP {way}: {lost} of {all} lost");
        }

        let page: Vec<u8> = (0..5_000_000u32)
            .flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3..].to_vec())
            .collect();
        std::fs::write(folder.join("page"), &page).unwrap();
        let configuration = folder.join("nginx.conf");
        let text = format!(
            "daemon off; master_process off; pid {0}/pid; error_log {0}/errors; events {{}} \
             http {{ access_log off; client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; \
             fastcgi_temp_path {0}/fastcgi; uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi; \
             server {{ listen {ADDRESS_B}:80; root {0}; }} }}",
            folder.display()
        );
        std::fs::write(&configuration, text).unwrap();
        let _nginx = self.start(
            "b",
            "nginx",
            &["-c", configuration.to_str().unwrap(), "-p", folder.to_str().unwrap()],
        );
        let fetched = folder.join("fetched");
        let line = format!(
            "curl -sS --fail --retry 20 --retry-connrefused --retry-delay 1 --max-time 60 -o {} http://{ADDRESS_B}/page",
            fetched.display()
        );
        self.must("a", &line);
        assert!(std::fs::read(&fetched).unwrap() == page, "the page was altered on its way");
    }

    fn iperf(&self, arguments: &str) -> serde_json::Value {
        let line = format!("iperf3 -c {ADDRESS_B} -J --connect-timeout 5000 {arguments}");
        let start = Instant::now();
        loop {
            let output = self.run("a", &line);
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            if output.status.success() && report["error"].is_null() {
                let end = &report["end"];
                let sum = if end["sum"].is_null() { &end["sum_received"] } else { &end["sum"] };
                assert!(sum["bytes"].as_f64().unwrap() > 1e5, "{line}: {report}");
                return report;
            }
            // Try the client again, because the server may still be starting, or ending the previous test.
            assert!(start.elapsed() < Duration::from_secs(60), "{line}: {report}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Starts inlane between two ports. Calls `ready` with the inlane process to complete the set-up, and
    /// runs the traffic. Then interrupts inlane and checks its result.
    fn through(&self, ports: [&str; 2], ready: impl FnOnce(&Child)) {
        let folder = tempfile::tempdir().unwrap();
        // nginx's worker does not run as root. It needs this permission to read the directory.
        shell(&format!("chmod 755 {}", folder.path().display())).unwrap();
        let json = folder.path().join("result.json");
        let mut inlane = self.start(
            "m",
            env!("CARGO_BIN_EXE_inlane"),
            &[
                "forward",
                "--between",
                ports[0],
                ports[1],
                "--function",
                "io",
                "--json",
                json.to_str().unwrap(),
            ],
        );
        ready(inlane.child.as_ref().unwrap());
        self.traffic(folder.path());
        let output = inlane.interrupt();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        let document: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        let result = &document["results"][0];
        // The traffic above consists of more than 5000 frames, so inlane must have counted more.
        assert!(result["tx"]["packets"].as_u64().unwrap() > 5000, "{result}");
        assert_eq!(result["rx"]["errors"], 0, "{result}");
        assert_eq!(result["leaked_buffers"], 0, "{result}");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in ["a", "m", "b"] {
            let _ = shell(&format!("ip netns delete {}", self.name(host)));
        }
    }
}

/// A running program, killed when the value is dropped.
struct Running {
    child: Option<Child>,
    name: String,
}

impl Running {
    fn interrupt(&mut self) -> Output {
        let child = self.child.take().unwrap();
        let status = Path::new("/proc").join(child.id().to_string());
        // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
        unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
        let start = Instant::now();
        while std::fs::read_to_string(status.join("stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            if start.elapsed() > Duration::from_secs(60) {
                // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
                unsafe { libc::kill(child.id() as i32, libc::SIGKILL) };
                panic!("{} did not end on SIGINT", self.name);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        child.wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn shell(line: &str) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let output =
        Command::new(words.next().unwrap()).args(words).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn over_af_xdp() {
    let Some(hosts) = Hosts::new("xdp") else { return };
    hosts.cables();
    hosts.through(["af_xdp:am", "af_xdp:bm"], |_| ());
}

#[test]
fn over_packet_sockets() {
    let Some(hosts) = Hosts::new("packet") else { return };
    hosts.cables();
    hosts.through(["af_packet:am", "af_packet:bm"], |_| ());
}

#[test]
fn over_tap_interfaces() {
    let Some(hosts) = Hosts::new("tap") else { return };
    hosts.through(["tap:ta", "tap:tb"], |inlane| {
        // DPDK's driver sets a new interface down and up again. So wait until the forwarding thread runs
        // before moving the interfaces to the hosts.
        until_thread_runs(inlane, "inlane-0", Duration::from_millis(1));
        for (tap, host) in [("ta", "a"), ("tb", "b")] {
            hosts.must("m", &format!("ip link set {tap} netns {}", hosts.name(host)));
        }
        hosts.address("ta", "tb");
    });
}
