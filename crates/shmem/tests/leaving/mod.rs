//! Jobs of `left.c`, in which a PE leaves while others still wait for something.

use inlane_pgas::launch::Job;
use inlane_pgas::transport::select::TransportKind;
use std::path::Path;

/// What the other PEs do, the number of PEs, and a part of the message with which the job ends. `None` if the job ends as
/// it should.
pub type Case = (&'static str, u32, Option<&'static str>);

/// The cases of all transports.
pub const LEFT: [Case; 13] = [
    ("nothing", 3, None),
    ("put", 2, None),
    ("late", 3, None),
    ("thread", 3, None),
    (
        "wait",
        3,
        Some(
            "PE 0 in shmem_long_wait_until: this PE waits for a word, but all other PEs have called shmem_finalize",
        ),
    ),
    ("any", 2, Some("all other PEs have called shmem_finalize")),
    ("signal", 2, Some("all other PEs have called shmem_finalize")),
    ("barrier", 2, Some("PE 1 has called shmem_finalize")),
    ("reduce", 2, Some("PE 1 has called shmem_finalize")),
    ("broadcast", 2, Some("PE 1 has called shmem_finalize")),
    ("team", 3, Some("PE 1 has called shmem_finalize")),
    ("allocate", 2, Some("PE 1 has called shmem_finalize")),
    ("lock", 3, Some("has called shmem_finalize")),
];

/// Runs `left.c`, which was compiled to `program`.
pub fn check_left(program: &Path, transport: TransportKind, (how, pes, why): Case) {
    let output = tempfile::NamedTempFile::new().unwrap();
    let line = format!("exec {} {how} 2>>{}", program.display(), output.path().display());
    let job = Job { pes, heap_bytes: 4 << 20, transport, ..Job::default() };
    let (status, _) = job.run(&"sh".into(), &["-c".into(), line.into()]).unwrap();
    let output = std::fs::read_to_string(output.path()).unwrap();
    let context = format!("{how} over {transport}: {output}");
    assert_eq!(status, i32::from(why.is_some()), "{context}");
    assert!(output.contains(why.unwrap_or_default()), "{context}");
    assert!(!output.contains("is lost"), "{context}");
}
