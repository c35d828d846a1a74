//! Runs a C program under Open MPI's mpirun, PRRTE's prterun, MPICH's mpiexec and Slurm's srun, over windows
//! and over UCX, and with settings from the environment.

mod compiling;

use compiling::compile;
use inlane_pgas::transport::ucx::Ucx;
use std::path::Path;
use std::process::{Command, Output};

/// The launchers to test: program, options, and package that contains the program. With these options, a
/// launcher runs as root and may start more processes than there are processors.
const LAUNCHERS: [(&str, &[&str], &str); 5] = [
    ("mpirun.openmpi", &["--allow-run-as-root", "--oversubscribe"], "openmpi-bin"),
    ("mpiexec.hydra", &[], "mpich"),
    ("prterun", &["--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE"], "prrte"),
    ("srun", &["--mpi=pmi2", "--overcommit"], "slurm-wlm"),
    ("srun", &["--mpi=pmix", "--overcommit"], "slurm-wlm libpmix-dev"),
];

/// Runs a launcher with arguments. Kills a job that hangs.
fn launch(
    launcher: &str,
    options: &[&str],
    program: &[&str],
    environment: &[(&str, &str)],
) -> Option<Output> {
    let mut command = Command::new("timeout");
    // Give each launcher its own temporary folder. Otherwise, launchers would share a folder. A launcher that
    // ends removes it, and another one that starts at this moment would fail.
    let folder = tempfile::tempdir().unwrap();
    command.env("TMPDIR", folder.path());
    command.args(["-k", "1", "100", launcher]).args(options).args(program).envs(environment.iter().copied());
    command.output().ok()
}

fn with_each_launcher(check: impl Fn(&str, &[&str])) {
    for (launcher, options, package) in LAUNCHERS {
        match launch(launcher, options, &["-n", "1", "true"], &[]) {
            Some(output) if output.status.success() => check(launcher, options),
            Some(output) if output.status.code() != Some(127) => {
                let why = String::from_utf8_lossy(&output.stderr).to_string();
                eprintln!("SKIPPED {launcher} {}: it does not start 'true' here: {why}", options.join(" "));
            }
            _ => eprintln!("SKIPPED {launcher}: the program is missing; apt-get install {package}"),
        }
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into()
}

#[test]
fn launchers_start_one_job() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "launched.c") else { return };
    let program = program.to_str().unwrap();
    with_each_launcher(|launcher, options| {
        for pes in ["1", "3"] {
            let output = launch(launcher, options, &["-n", pes, program, pes, "plain"], &[]).unwrap();
            assert!(output.status.success(), "{launcher} {pes}: {}", text(&output));
        }
        let output = launch(launcher, options, &["-n", "2", program, "2", "global"], &[]).unwrap();
        // Do not check the exact status. A launcher may kill a PE that is slow to end, and then return the
        // number of the signal.
        assert!(!output.status.success(), "{launcher}: {}", text(&output));
        let heap = [("SHMEM_SYMMETRIC_SIZE", "4.5M"), ("SHMEM_DEBUG", "1")];
        let output = launch(launcher, options, &["-n", "2", program, "2", "large"], &heap).unwrap();
        assert!(output.status.success(), "{launcher}: {}", text(&output));
        assert_eq!(text(&output).matches(" of 2, process ").count(), 2, "{launcher}: {}", text(&output));
    });
}

#[test]
fn pes_find_out_whether_they_share_processors() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "launched.c") else { return };
    let program = program.to_str().unwrap();
    let processors = inlane_pgas::launch::processors();
    let first = processors[0].to_string();
    let transports: &[&str] = if Ucx::version().is_ok() { &["windows", "ucx"] } else { &["windows"] };
    for transport in transports {
        let environment = [("INLANE_NTB_TRANSPORT", *transport), ("SHMEM_DEBUG", "1")];
        with_each_launcher(|launcher, options| {
            let sharing = |command: &[&str]| {
                let output = launch(launcher, options, command, &environment).unwrap();
                assert!(output.status.success(), "{launcher}: {}", text(&output));
                text(&output).matches("more PEs than processors").count()
            };
            let bound = ["-n", "2", "taskset", "-c", &first, program, "2", "plain"];
            assert_eq!(sharing(&bound), 2, "{launcher} over {transport}");
            if processors.len() > 1 {
                let free = ["-n", "2", program, "2", "plain"];
                assert_eq!(sharing(&free), 0, "{launcher} over {transport}");
            }
        });
    }
}

#[test]
fn launchers_start_one_job_over_ucx() {
    if let Err(error) = Ucx::version() {
        eprintln!("SKIPPED launchers_start_one_job_over_ucx: {error}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "launched.c") else { return };
    let program = program.to_str().unwrap();
    let over_ucx = [("INLANE_NTB_TRANSPORT", "ucx"), ("SHMEM_DEBUG", "1"), ("SHMEM_SYMMETRIC_SIZE", "4.5M")];
    with_each_launcher(|launcher, options| {
        for (pes, how) in [("1", "plain"), ("3", "plain"), ("2", "large")] {
            let output = launch(launcher, options, &["-n", pes, program, pes, how], &over_ucx).unwrap();
            let text = text(&output);
            assert!(output.status.success(), "{launcher} {pes} {how}: {text}");
            let taken = text.lines().filter(|line| {
                line.contains(": UCX ") && line.contains("because INLANE_NTB_TRANSPORT asks for it")
            });
            assert_eq!(taken.count(), pes.parse::<usize>().unwrap(), "{launcher} {pes}: {text}");
        }
        let output = launch(launcher, options, &["-n", "2", program, "2", "global"], &over_ucx).unwrap();
        assert!(!output.status.success(), "{launcher}: {}", text(&output));
    });
    // A program that is started without a launcher is a job of one PE.
    let output = alone(Path::new(program), &over_ucx);
    assert!(output.status.success() && text(&output).contains(": UCX "), "{}", text(&output));
    for (address, why) in [("192.0.2.1", "an address of this machine"), ("here", "give an IP address")] {
        let output = alone(Path::new(program), &[over_ucx[0], ("INLANE_NTB_ADDRESS", address)]);
        assert!(!output.status.success() && text(&output).contains(why), "{}", text(&output));
    }
}

fn alone(program: &Path, environment: &[(&str, &str)]) -> Output {
    Command::new(program).args(["1", "plain"]).envs(environment.iter().copied()).output().unwrap()
}

#[test]
fn processes_that_cannot_join_the_others_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "launched.c") else { return };
    for environment in [
        &[("OMPI_COMM_WORLD_SIZE", "4")][..],
        &[("PMI_FD", "99"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")],
        &[("PMI_FD", "nonsense"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")],
    ] {
        let output = alone(&program, environment);
        assert!(!output.status.success());
        assert!(text(&output).contains("cannot join the others"), "{environment:?}: {}", text(&output));
    }
    assert!(alone(&program, &[("OMPI_COMM_WORLD_SIZE", "1")]).status.success());
}

#[test]
fn variables_are_checked_and_described() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "launched.c") else { return };
    for (name, value) in [
        ("SHMEM_SYMMETRIC_SIZE", "nonsense"),
        ("SHMEM_SYMMETRIC_SIZE", "-5M"),
        ("INLANE_SHMEM_CONNECT_TIMEOUT", "5"),
        ("INLANE_NTB_YIELD", "yes"),
        ("INLANE_SHMEM_ANSWER_TIMEOUT", "soon"),
    ] {
        let output = alone(&program, &[(name, value)]);
        assert!(!output.status.success(), "{name}={value}");
        assert!(text(&output).contains(&format!("{name}={value}: ")), "{}", text(&output));
    }
    let output = alone(&program, &[("SHMEM_INFO", "1"), ("SHMEM_VERSION", "1")]);
    assert!(text(&output).contains("SHMEM_SYMMETRIC_SIZE=SIZE"), "{}", text(&output));
    assert!(text(&output).contains("OpenSHMEM 1.5"), "{}", text(&output));
}

#[test]
fn only_timeouts_that_are_set_end_a_job() {
    use inlane_pgas::launch::Job;
    use inlane_pgas::transport::windows::options::Options;
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "launched.c") else { return };
    let folder = directory.path().join("folder");
    let run = |variable: &str, how: &str| {
        // Run the program through `env`, which sets the variable for this job only.
        let arguments = [format!("{variable}=200ms"), program.display().to_string(), "2".into(), how.into()];
        let arguments: Vec<_> =
            arguments.into_iter().map(Into::into).chain([folder.clone().into()]).collect();
        // With a fault, the owner of a word carries out atomics on the word, so an atomic at a stopped PE
        // gets no answer. Use the fault `flap`: link failures every 2 h do not affect the test. The fault
        // `delay` would hold back stores that a PE issued before it stopped.
        let job = Job {
            pes: 2,
            heap_bytes: 4 << 20,
            windows: Options { faults: "flap=2h".into(), ..Options::default() },
            ..Job::default()
        };
        job.run(&"env".into(), &arguments).unwrap().0
    };
    assert_eq!(run("INLANE_SHMEM_CONNECT_TIMEOUT", "absent"), 1);
    assert_eq!(run("INLANE_SHMEM_ANSWER_TIMEOUT", "stopped"), 1);
}
