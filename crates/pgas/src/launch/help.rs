//! The text about the environment variables that users set.

use crate::transport::select::TransportKind;
use inlane_core::setting::Choice;

/// Returns the list of environment variables. A program prints it at the start if [`INFO`](crate::variables::INFO) is set.
pub fn help() -> String {
    let names: Vec<_> = TransportKind::CHOICES.iter().map(|(_, name, _)| *name).collect();
    let (names, usual, network) =
        (names.join(", or "), TransportKind::default(), TransportKind::between_machines());
    format!(
        "\
SHMEM_SYMMETRIC_SIZE=SIZE          symmetric heap of each PE: a number with K, M, G or T [1G]
SHMEM_VERSION=1                    print the library's version at the start
SHMEM_INFO=1                       print this text at the start
SHMEM_DEBUG=1                      print the path that each PE takes, and why
INLANE_SHMEM_CHECK=1               check that PEs allocate alike, and that accesses lie within allocated blocks
INLANE_NTB_TRANSPORT=NAME          {names} [{usual}; {network} if mpirun or srun starts PEs on several machines]
INLANE_NTB_ADDRESS=ADDRESS         over {network} with mpirun or srun: the address of PE 0's machine at which PEs meet
INLANE_SHMEM_CONNECT_TIMEOUT=TIME  longest wait for the other PEs to start, such as 30s [no limit]
INLANE_SHMEM_ANSWER_TIMEOUT=TIME   longest wait for another PE's answer, such as 75s [no limit]"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variables;

    #[test]
    fn the_help_names_all_transports() {
        let help = help();
        let line = help
            .lines()
            .find(|line| line.starts_with(variables::TRANSPORT))
            .expect("the transport has a line");
        for (_, name, _) in TransportKind::CHOICES {
            assert!(line.contains(name), "{name} is missing in: {line}");
        }
    }
}
