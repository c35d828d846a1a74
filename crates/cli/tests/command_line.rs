//! Runs the command line as users see it. Each file in `cmd/` is a session with its output and exit
//! statuses. To accept an intended change: `TRYCMD=overwrite cargo test -p inlane --test command_line`.

use std::process::{Command, Stdio};

#[test]
fn sessions() {
    trycmd::TestCases::new().case("tests/cmd/*.trycmd");
}

#[test]
fn a_closed_pipe_is_no_error_and_a_full_disk_is_one() {
    let run = |arguments: &str, stdout: Stdio, stderr: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
        command.args(arguments.split(' ')).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        command.status().unwrap().code()
    };
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let forward = "forward --rx gen:64 --tx null --packets 100 --no-baseline";
    for arguments in [
        forward,
        &format!("{forward} --repeats 2"),
        &format!("{forward} --json -"),
        "forward --list-functions",
        "doctor --json -",
        "topo --json -",
        "schema packets",
        "report --schema packets",
        "man forward",
    ] {
        assert_eq!(run(arguments, closed(), closed()), Some(0), "{arguments}");
        assert_eq!(run(arguments, full(), full()), Some(1), "{arguments}");
    }
}

#[test]
fn schemas_are_also_found_by_the_name_of_the_command() {
    let schema = |name: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_inlane")).args(["schema", name]).output().unwrap();
        assert!(output.status.success(), "{name}");
        output.stdout
    };
    for (command, document) in [("forward", "packets"), ("copy", "transfers"), ("ntb-bench", "windows")] {
        assert!(schema(command) == schema(document), "{command}");
    }
}

#[test]
fn outputs_are_opened_before_the_run() {
    for arguments in ["topo --json", "doctor --json", "ntb bench --json", "ntb bench --svg"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
        let output = command.args(arguments.split(' ')).arg("/no/such/directory/x").output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments}");
        assert!(output.stdout.is_empty(), "{arguments}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("name a file in a directory that you may write"), "{said}");
    }
}

#[test]
fn mistakes_are_answered_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("misspelt.toml"), "[forward]\nbrust = 1\n").unwrap();
    std::fs::write(directory.path().join("text.txt"), "hello\n").unwrap();
    std::fs::write(directory.path().join("open.toml"), "[forward]\n[x\n").unwrap();
    std::fs::write(directory.path().join("map.toml"), "[rule]\nrun_by = \"kernel\"\n").unwrap();
    std::fs::write(directory.path().join("key.toml"), "[[rule]]\nuze = \"connect\"\n").unwrap();
    let cases = [
        ("forward --rx eth9 --tx null", 2, "did you mean af_xdp:eth9 or af_packet:eth9?"),
        ("forward --rx 0000:3b:00.0 --tx null", 2, "did you mean pci:0000:3b:00.0?"),
        ("forward --rx nul:64 --tx null", 2, "did you mean null:64?"),
        ("forward --rx= --tx null", 2, "--rx '': the port is missing"),
        (
            "forward --rx null --tx null --burst 64K",
            2,
            "--burst 64K: a count has no unit; give a whole number",
        ),
        ("forward --rx null --tx null --burst=", 2, "--burst '': give a whole number from 1 to 1024"),
        ("forward --rx null --tx null --slots 1e3", 2, "--slots 1e3: give a power of two from 2 to 65536"),
        ("forward --rx null --tx null --pipelines 99999999", 2, "--pipelines 99999999: give 1 to 64"),
        ("forward --rx null --tx null --workers x", 2, "--workers x: give a whole number from 0 to 64"),
        ("forward --rx null --tx null --blocks -1", 2, "--blocks -1: give 0 to 65535"),
        ("forward --rx null --tx null --size 64X", 2, "'X' is not a unit"),
        (
            "forward --rx null --tx null --rate -1",
            2,
            "'-1' is not a rate: it is negative; give for example 10G",
        ),
        ("forward --rx null --tx null --cores 0,0 --method split", 2, "core 0 is named twice"),
        ("forward --rx null --tx null --loop", 2, "--loop: it needs a capture"),
        ("ntb run -n two true", 2, "--pes two: give a whole number from 1 to 1024"),
        ("ntb run -n -1 true", 2, "--pes -1: give 1 to 1024"),
        ("nvme target --namespace memory:1M --cores 0,0", 2, "core 0 is named twice"),
        ("ntb bench --repeats 0", 2, "--repeats 0: give 1 to 1000"),
        (
            "nvme bench 127.0.0.1 --numjobs 1K",
            2,
            "--numjobs 1K: a count has no unit; give a whole number from 1 to 256",
        ),
        (
            "nvme target --namespace memory:1M --threads x",
            2,
            "--threads x: give a whole number from 1 to 1024",
        ),
        ("offload serve --port tap:a --address 10.9.0.1/24 --mtu 9", 2, "--mtu 9: give 1280 to 65535"),
        (
            "offload serve --port tap:a --address 10.9.0.1/24 --socket-group no-such-group",
            2,
            "--socket-group no-such-group: there is no such group on this machine",
        ),
        (
            "copy --from host --to twin:0 --in-flight 1K",
            2,
            "--in-flight 1K: a count has no unit; give a whole number from 1 to 4096",
        ),
        ("copy --from host --to twin:0 --sm-threads 33", 2, "give a multiple of 32 from 32 to 1024"),
        (
            "copy --from host --to host --sizes 4KB-1MB",
            2,
            "a range has two dots: 4KB..1MB; give one size (1M), a list",
        ),
        (
            "ntb bench --sizes 8,x",
            2,
            "'x' is not a size; give one size (1M), a list (4K,1M) or a range (4K..256M,",
        ),
        (
            "copy --from host --to twin:0 --duration 5",
            2,
            "it has no unit; give for example 200ns, 50us, 5s or 2m",
        ),
        ("copy --from host --to twin:0 --duration -5s", 2, "'-5s' is not a time: it is negative"),
        ("schema mover", 2, "invalid value 'mover' for '<DOCUMENT>'"),
        (
            "forward --rx null --tx null --metrics 127.0.0.1",
            2,
            "the port is missing; give IP:PORT, for example 127.0.0.1:9400",
        ),
        ("schema packet", 2, "a similar value exists: 'packets'"),
        ("copy --from host --to twin:0 --path nvlink", 2, "--path nvlink: choose one of cpu, dma, sm,"),
        ("copy --from host --to twin:0 --completion busy", 2, "choose one of poll, interrupt, adaptive"),
        ("nvme discover 127.0.0.1 --digests all", 2, "[possible values: none, header, data, both]"),
        ("forward --rx null --tx null --goal latency", 2, "[possible values: throughput]"),
        ("doctor gpus", 2, "a similar value exists: 'gpu'"),
        // Flags and subcommands.
        ("forwrad", 2, "unrecognized subcommand 'forwrad'\n\n  tip: a similar subcommand exists: 'forward'"),
        ("ntb chekc", 2, "a similar subcommand exists: 'check'\n\nUsage: inlane ntb "),
        (
            "copy --form host",
            2,
            "unexpected argument '--form' found\n\n  tip: a similar argument exists: '--from'",
        ),
        ("topo extra", 2, "unexpected argument 'extra' found\n\nUsage: inlane topo"),
        ("copy --from", 2, "a value is required for '--from <ENDPOINT>' but none was supplied"),
        ("copy --from host", 2, "arguments were not provided:\n  --to <ENDPOINT>\n\nUsage: inlane copy"),
        (
            "copy --from twin:0 --to twin:1 --sm-slots 4",
            2,
            "--sm-slots: it needs path staged-sm between two GPUs;",
        ),
        (
            "copy --matrix --devices host,twin:0 --allow-bar-read",
            2,
            "--allow-bar-read: it needs a BAR as endpoint, such as",
        ),
        ("schema", 2, "arguments were not provided:\n  <DOCUMENT>"),
        ("report", 2, "arguments were not provided:\n  --output <FILE>"),
        (
            "forward --rx gen:64 --tx check:128",
            2,
            "check:128: the generator of this run, gen:64, sends other packets",
        ),
        ("ntb run -n 4", 2, "arguments were not provided:\n  <PROGRAM>..."),
        ("forward --between null", 2, "2 values required for '--between <PORT> <PORT>' but 1 was provided"),
        ("forward --rx null --tx null --stages=yes", 2, "unexpected value 'yes' for '--stages' found"),
        ("forward --rx null --tx null --compete compute", 2, "give --compete=compute"),
        (
            "copy --published --completion poll",
            2,
            "the argument '--published' cannot be used with '--completion <MODE,...>'",
        ),
        ("forward --burst 1 --burst 2", 2, "the argument '--burst <N>' cannot be used multiple times"),
        // Settings.
        ("forward --config misspelt.toml", 2, "[forward] has the unknown key 'brust'; did you mean burst?"),
        ("forward --config nope.toml", 3, "settings file nope.toml: cannot be read"),
        ("forward --rx pcap:nope.pcap --tx null", 3, "name a capture that you may read"),
        ("man --directory text.txt", 2, "--directory text.txt: it is a file; name a directory"),
        ("ntb run nosuchprogram", 3, "cannot start 'nosuchprogram'"),
        ("ntb run ./text.txt", 3, "cannot start './text.txt': it is not executable; allow that: chmod +x"),
        (
            "offload run ./text.txt",
            3,
            "cannot start './text.txt': it is not executable; allow that: chmod +x",
        ),
        ("offload run .", 3, "cannot start '.': it is a directory; name a program in it"),
        ("offload run nosuchprogram", 3, "cannot start 'nosuchprogram': there is no such executable program"),
        ("offload run --rules nope true", 3, "--rules nope: cannot be read"),
        ("ntb bench --ucx-repeats 2", 2, "arguments were not provided:\n  --ucx <PROGRAM>"),
        ("ntb bench --mover twin:fast", 2, "give twin, twin:RATE in bits per second"),
        ("forward --rx null --tx null --size 64K", 2, "--size 64K: give 14 B to 65535 B"),
        ("nvme read 127.0.0.1:99999 out", 2, "ADDRESS 127.0.0.1:99999: the port"),
        ("topo --json .", 2, "cannot write .: it is a directory; name a file in it"),
        ("forward --config .", 2, "settings file .: it is a directory; name a TOML file in it"),
        ("forward --rx null --tx pcap:.", 2, "port pcap:.: it is a directory; name a file in it"),
        ("forward --rx null --tx null --capture .", 2, "--capture .: it is a directory; name a file in it"),
        ("forward --rx pcap:. --tx null", 2, "port pcap:.: it is a directory; name a capture in it"),
        ("offload run --rules . true", 2, "--rules .: it is a directory; name a TOML file in it"),
        (
            "offload status --socket .",
            2,
            "--socket .: it is a directory, not a socket; give the control socket",
        ),
        (
            "offload trace --cores 1,2",
            2,
            "it names 2 cores; name four, for example 1,2,3,4, or six with cards",
        ),
        ("offload trace --messages 9", 2, "--messages 9: give 100 to 1000000"),
        ("offload status --socket text.txt", 2, "--socket text.txt: it is a file, not a socket"),
        // Rules.
        (
            "offload run --rules map.toml true",
            2,
            "'rule' must be a list of tables; begin each rule with the line [[rule]]",
        ),
        ("offload run --rules key.toml true", 2, "rule 1: the key 'uze' is unknown; choose among run_by,"),
        (
            "offload run --rules text.txt true",
            2,
            "rules in text.txt:1: there is no value; write NAME = VALUE",
        ),
        ("ntb run --address 127.0.0.1 true", 2, "it applies to --transport ucx only; add --transport ucx,"),
        ("ntb bench --duration 2h", 2, "--duration 2h: give at most one hour"),
        ("nvme target --listen 127.0.0.1:99999 --namespace memory:1M", 2, "the port exceeds 65535; give"),
        ("nvme target --listen 127.0.0.1 --namespace memory:1M", 2, "the port is missing; give IP:PORT"),
        (
            "nvme target --namespace file:nope",
            3,
            "cannot open nope: No such file or directory (os error 2); add",
        ),
        (
            "offload serve --port tap:a --address 10.9.0.1/44",
            2,
            "the prefix length '44' is not a number from",
        ),
        ("ntb bench --ucx ./nope", 3, "there is no such program; give the path of ucx_perftest"),
        ("ntb bench --ucx ./text.txt", 3, "it is not executable; give the path of ucx_perftest"),
        ("ntb bench --only mover --ucx ./nope", 2, "which --only mover leaves out; leave --ucx out"),
        ("forward --config open.toml", 2, "settings file open.toml:2: unclosed table, expected `]`"),
        ("forward --rx null --tx null --sweep", 2, "a value is required for '--sweep <FLAG=VALUE,...>'"),
        ("forward --rx null --tx null --cores 0-9999", 2, "--cores 0-9999: core 9999 does not exist"),
        ("forward --rx null --tx null --cores 1-0", 2, "--cores 1-0: the range 1-0 ends before it starts"),
        ("forward --rx null --tx null --buffers 4M", 2, "--buffers 4M: a count has no unit; give a whole"),
        ("forward --rx null --tx null --function nope", 2, "--function nope: there is no such packet"),
        ("forward --rx null --tx null --faults nope", 2, "--faults nope: it has no value"),
        ("ntb run --faults nope true", 2, "--faults nope: there is no such fault; choose one of delay,"),
        ("copy --from host --to host --access 3", 2, "--access 3: choose one of 4, 8, 16, 32, 64, nt,"),
        // Secrets of ports are never shown.
        ("forward --rx null --tx memif:a,secret=b,c", 2, "port memif:a,secret=***,c: unknown option 'c'"),
        ("forward --between memif:a,secret=b memif:a,secret=b", 2, "--between memif:a,secret=***: it is"),
        (
            "offload serve --port memif:nodir/a,secret=b --address 10.9.0.1/24 --socket ./s",
            3,
            "port memif:nodir/a,secret=***: directory ",
        ),
        ("offload serve --port x,secret=b --address 10.9.0.1/24", 2, "--port x,secret=***: there is no such"),
        // Settings of an engine.
        (
            "offload serve --port tap:a --address fd00::/64",
            2,
            "fd00:: is the address of the network itself; give the address of a host in it, for example fd00::1/64",
        ),
        (
            "offload serve --port tap:a --address 10.9.0.1/24 --gateway 10.9.0.1",
            2,
            "--gateway 10.9.0.1: it is an address of the engine itself",
        ),
        (
            "offload serve --port tap:a --address 10.9.0.1/24 --buffer 3M",
            2,
            "--buffer 3M: give a power of two",
        ),
        (
            "offload serve --port tap:a --address 10.9.0.1/24 --cores 0-1000",
            2,
            "--cores: it names 1001 cores; name at most 64",
        ),
        ("nvme discover 127.0.0.1:1", 3, "cannot connect: Connection refused"),
        ("offload status --socket ./nope", 3, "start one with 'inlane offload serve'"),
    ];
    for (line, status, text) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
        let output =
            command.args(line.split(' ')).current_dir(&directory).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{line}: {said}");
        assert!(said.starts_with("inlane: ") && said.contains(text), "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}");
    }
}

#[test]
fn secrets_and_their_files_are_checked_before_a_target_starts() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let run = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
        command.args(line.split(' ')).current_dir(&directory).stdin(Stdio::null()).output().unwrap()
    };
    let write = |name: &str, text: &[u8], mode: u32| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let generated = |line: &str| {
        let output = run(line);
        assert!(output.status.success(), "{line}");
        String::from_utf8(output.stdout).unwrap()
    };
    let line = generated("nvme gen-dhchap-key --host-nqn nqn.2026-11.org.example:a --target-secret");
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!((words.len(), words[0]), (3, "nqn.2026-11.org.example:a"));
    assert!(words[1..].iter().all(|secret| secret.starts_with("DHHC-1:00:")) && words[1] != words[2]);
    for (hash, start) in [("sha256", "DHHC-1:01:"), ("sha384", "DHHC-1:02:"), ("sha512", "DHHC-1:03:")] {
        assert!(generated(&format!("nvme gen-dhchap-key --hmac {hash}")).starts_with(start), "{hash}");
    }

    write("private", line.as_bytes(), 0o600);
    write("public", line.as_bytes(), 0o644);
    write("binary", &[0xFF, 0xFE], 0o600);
    write("swapped", format!("{} {}", words[1], words[0]).as_bytes(), 0o600);
    let target = "nvme target --listen 127.0.0.1:0 --namespace memory:1M";
    let read = "nvme read 127.0.0.1:1 --length 4K";
    let cases = [
        (format!("{target} --secrets-file public"), 2, "(mode 644); protect it: chmod 600 public"),
        (format!("{read} --secrets-file public out"), 2, "(mode 644); protect it: chmod 600 public"),
        (format!("{target} --secrets-file binary"), 2, "it is not UTF-8 text; write"),
        (format!("{target} --hosts-file binary"), 2, "it is not UTF-8 text; write"),
        (format!("{target} --hosts-file /dev/null"), 2, "it is not a regular file"),
        (
            format!("{target} --secrets-file swapped"),
            2,
            "line 1: it starts with a secret; write the host's NQN",
        ),
        (format!("{target} --secrets-file missing"), 3, "it cannot be read: No such file or directory"),
        (
            format!("{read} --secrets-file private --host-nqn nqn.b out"),
            2,
            "it has no line for this host, nqn.b",
        ),
        (
            format!("{target} --secrets-file private --host nqn.a"),
            2,
            "the argument '--secrets-file <FILE>' cannot be used with '--host <NQN>'",
        ),
        (
            format!("{target} --secrets-file private --hosts-file private"),
            2,
            "cannot be used with '--hosts-file <FILE>'",
        ),
        (format!("{target} --dhchap-hash sha384"), 2, "not provided:\n  --secrets-file <FILE>"),
        (format!("{target} --dhchap-dhgroup ffdhe3072"), 2, "not provided:\n  --secrets-file <FILE>"),
        (
            format!("{target} --secrets-file private --dhchap-hash md5"),
            2,
            "[possible values: sha256, sha384, sha512]",
        ),
        (
            format!("{target} --secrets-file private --dhchap-dhgroup dh"),
            2,
            "[possible values: null, ffdhe2048",
        ),
        ("nvme gen-dhchap-key --hmac md5".into(), 2, "[possible values: sha256, sha384, sha512]"),
        ("nvme gen-dhchap-key --target-secret".into(), 2, "not provided:\n  --host-nqn <NQN>"),
        ("nvme gen-dhchap-key --host-nqn x".into(), 2, "an NQN starts with 'nqn.'"),
    ];
    for (line, status, text) in cases {
        let output = run(&line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{line}: {said}");
        assert!(said.starts_with("inlane: ") && said.contains(text), "{line}: {said}");
        assert!(!said.contains(&words[1][10..]), "a message contains a secret: {said}");
    }
}

#[test]
fn requests_that_clap_refuses_are_understood() {
    for (line, text) in [
        ("help --help", "Usage: inlane [OPTIONS] <COMMAND>"),
        ("ntb help -h", "Usage: inlane ntb [OPTIONS] <COMMAND>"),
        ("doctor memif,tun", "memif"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_inlane")).args(line.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(text), "{line}");
    }
}

#[test]
fn a_started_program_gets_its_own_flags() {
    for line in ["ntb run -n 1 echo --heap -n 9 --config x", "ntb run -n 1 -- echo --heap -n 9 --config x"] {
        let output = Command::new(env!("CARGO_BIN_EXE_inlane")).args(line.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "--heap -n 9 --config x\n", "{line}");
    }
}
