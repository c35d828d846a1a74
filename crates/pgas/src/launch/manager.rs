//! Process managers: launchers such as `mpirun`, `mpiexec` and `srun`. They start processes, and exchange
//! short texts between the processes.
//!
//! | manager | interface | found by |
//! | --- | --- | --- |
//! | hydra (MPICH's `mpiexec`), Slurm's `mpi/pmi2` | PMI-1's messages ([`pmi`]) | `PMI_FD` |
//! | Open MPI's `mpirun`, PRRTE's `prterun`, Slurm's `mpi/pmix` | libpmix | `PMIX_NAMESPACE` |

pub mod pmi;
mod pmix;

use crate::error::{Error, Result};

/// A process's connection to its process manager.
pub trait ProcessManager: Send {
    /// Returns the number of this process.
    fn rank(&self) -> u32;
    /// Returns the number of processes.
    fn size(&self) -> u32;
    /// Returns the number of the job's processes on one of its machines, which need not be this machine.
    /// Returns `None` if the manager does not report the number. It equals [`ProcessManager::size`] only if
    /// all processes run on one machine.
    fn local_size(&self) -> Option<u32> {
        LOCAL.into_iter().find_map(value)
    }
    /// Stores `text` under `key`. Other processes see it after the next [`ProcessManager::fence`]. A key has
    /// at most 60 characters, a text at most 250. Neither may contain spaces.
    ///
    /// # Errors
    /// If the manager refuses or has ended.
    fn put(&mut self, key: &str, text: &str) -> Result<()>;
    /// Blocks until all processes have called this method.
    ///
    /// # Errors
    /// If the manager refuses or has ended.
    fn fence(&mut self) -> Result<()>;
    /// Returns the text that process `rank` stored under the key.
    ///
    /// # Errors
    /// If there is none, or the manager has ended.
    fn get(&mut self, rank: u32, key: &str) -> Result<String>;
    /// Reports that this process has finished. The manager then does not count the end of the process as a
    /// failure.
    fn finish(&mut self) -> Result<()>;
}

/// The environment variables in which launchers announce the number of processes.
const ANNOUNCED: [&str; 7] = [
    "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS",
    "MPI_LOCALNRANKS",
    "FLUX_JOB_SIZE",
    "JSM_NAMESPACE_SIZE",
    "PALS_LOCAL_SIZE",
];

/// The environment variables in which launchers announce how many of the job's processes run on one machine.
///
/// Slurm announces a list for all machines: `2(x3),1` means three machines with 2 processes each and one with
/// 1 process. Its first number is the number of all processes only if the job has one machine.
const LOCAL: [&str; 3] = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"];

/// Returns the number at the start of an environment variable's value. Returns `None` if there is none.
fn value(name: &str) -> Option<u32> {
    let text = std::env::var(name).ok()?;
    text.trim().split(['(', ',']).next()?.parse().ok()
}

/// Returns the first environment variable in which a launcher announces more than one process: its name and
/// its value. Returns `None` if no variable does.
fn announced() -> Option<(&'static str, u32)> {
    ANNOUNCED.into_iter().find_map(|name| value(name).filter(|size| *size > 1).map(|size| (name, size)))
}

/// Returns true if this process belongs to a job: inlane's launcher started it, or another launcher announces
/// more than one process.
pub fn is_in_job() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some();
    set(super::MEETING) || announced().is_some()
}

/// Connects to the process manager that environment variables name. Returns `None` if they name none.
///
/// # Errors
/// If environment variables announce more than one process, and this process cannot join the others.
pub fn connect() -> Result<Option<Box<dyn ProcessManager>>> {
    let connected: Result<Option<Box<dyn ProcessManager>>> = if std::env::var_os("PMI_FD").is_some() {
        pmi::Pmi::from_environment().map(|manager| Some(Box::new(manager) as _))
    } else if std::env::var_os("PMIX_NAMESPACE").is_some() {
        pmix::Pmix::connect().map(|manager| Some(Box::new(manager) as _))
    } else {
        Ok(None)
    };
    match (connected, announced()) {
        (Ok(Some(manager)), _) => Ok(Some(manager)),
        (_, None) => Ok(None),
        (outcome, Some((name, size))) => {
            let why = match outcome {
                Err(error) => error.to_string(),
                Ok(_) => "neither PMI_FD nor PMIX_NAMESPACE is set".into(),
            };
            Err(Error::invalid(
                format!("{name}={size}"),
                format!(
                    "a launcher started {size} processes, but this one cannot join the others: {why}; start the job with oshrun -np {size}, with mpirun or mpiexec of Open MPI or MPICH, or with srun --mpi=pmix"
                ),
            ))
        }
    }
}
