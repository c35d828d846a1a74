//! The messages of PMI-1, version 1.1 (MPICH's "Process Management Interface", `simple_pmi`).
//!
//! A message is a line of `KEY=VALUE` words. The client asks and the manager answers:
//!
//! ```text
//! cmd=init pmi_version=1 pmi_subversion=1      cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
//! cmd=get_my_kvsname                           cmd=my_kvsname kvsname=NAME
//! cmd=put kvsname=NAME key=KEY value=TEXT      cmd=put_result rc=0 msg=success
//! cmd=barrier_in                               cmd=barrier_out
//! cmd=get kvsname=NAME key=KEY                 cmd=get_result rc=0 msg=success value=TEXT
//! cmd=finalize                                 cmd=finalize_ack
//! ```

use super::ProcessManager;
use crate::error::{Error, Result};
use crate::variables::parsed;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, RawFd};

/// Longest line of an answer in bytes.
const LONGEST: u64 = 16 << 10;

/// A connection that speaks PMI-1.
pub struct Pmi<S> {
    stream: BufReader<S>,
    rank: u32,
    size: u32,
    /// Name of the manager's key-value space (`kvsname`). Each `put` and `get` message contains it.
    table: String,
}

fn failed(what: &str, why: impl Into<String>) -> Error {
    Error::Failed { what: format!("process manager (PMI): {what}"), why: why.into() }
}

/// Returns the value of a key in a line of `KEY=VALUE` words.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

impl Pmi<File> {
    /// Connects over the descriptor that the environment names.
    ///
    /// # Errors
    /// [`Error::Invalid`] for variables that are missing or invalid, [`Error::Failed`] if the manager refuses.
    pub fn from_environment() -> Result<Self> {
        let number = |name| {
            let number: Option<u32> = parsed(name, "; start the program with a launcher that speaks PMI")?;
            number.ok_or_else(|| {
                Error::invalid(name, "not set; start the program with a launcher that speaks PMI")
            })
        };
        let (descriptor, rank, size) = (number("PMI_FD")? as RawFd, number("PMI_RANK")?, number("PMI_SIZE")?);
        // SAFETY: the call takes numbers. It fails if the descriptor is not open.
        if unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
            return Err(Error::invalid(
                format!("PMI_FD={descriptor}"),
                "that descriptor is not open; start the program directly from the launcher, not through a program that closes it",
            ));
        }
        // SAFETY: the descriptor is open. The launcher made it for this process, so this `File` is its only
        // owner.
        let stream = unsafe { File::from_raw_fd(descriptor) };
        Self::over(stream, rank, size)
    }
}

impl<S: Read + Write> Pmi<S> {
    /// Connects to the process manager over `stream`. This process is number `rank` of `size` processes.
    ///
    /// # Errors
    /// [`Error::Failed`] if the manager refuses, or if rank and size do not fit.
    pub fn over(stream: S, rank: u32, size: u32) -> Result<Self> {
        if rank >= size {
            return Err(failed("PMI_RANK", format!("rank {rank} of {size} processes does not exist")));
        }
        let mut pmi = Self { stream: BufReader::new(stream), rank, size, table: String::new() };
        let answer = pmi.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        if value(&answer, "pmi_version") != Some("1") {
            return Err(failed("it speaks another version of PMI", answer));
        }
        let answer = pmi.ask("cmd=get_my_kvsname", "my_kvsname")?;
        let table =
            value(&answer, "kvsname").ok_or_else(|| failed("no name of its table", answer.clone()))?;
        pmi.table = table.into();
        Ok(pmi)
    }

    /// Sends a line and returns the answer. Fails unless the answer's `cmd` is `command`, and its `rc` is 0
    /// or missing.
    fn ask(&mut self, line: &str, command: &str) -> Result<String> {
        let ended = |error: std::io::Error| failed("the connection is lost", error.to_string());
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).map_err(ended)?;
        let mut answer = Vec::new();
        (&mut self.stream).take(LONGEST).read_until(b'\n', &mut answer).map_err(ended)?;
        if answer.last() != Some(&b'\n') {
            return Err(failed("the connection is lost", "its answer is cut off"));
        }
        let answer = String::from_utf8_lossy(&answer).trim_end().to_string();
        match (value(&answer, "cmd") == Some(command), value(&answer, "rc").unwrap_or("0")) {
            (true, "0") => Ok(answer),
            _ => Err(failed(&format!("no answer to '{line}'"), format!("it sent '{answer}'"))),
        }
    }
}

impl<S: Read + Write + Send> ProcessManager for Pmi<S> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn put(&mut self, key: &str, text: &str) -> Result<()> {
        let line = format!("cmd=put kvsname={} key={key}-{} value={text}", self.table, self.rank);
        self.ask(&line, "put_result").map(drop)
    }

    fn fence(&mut self) -> Result<()> {
        self.ask("cmd=barrier_in", "barrier_out").map(drop)
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<String> {
        let line = format!("cmd=get kvsname={} key={key}-{rank}", self.table);
        let answer = self.ask(&line, "get_result")?;
        value(&answer, "value")
            .map(Into::into)
            .ok_or_else(|| failed(&format!("no text for '{key}'"), answer.clone()))
    }

    fn finish(&mut self) -> Result<()> {
        self.ask("cmd=finalize", "finalize_ack").map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::net::UnixStream;

    /// Starts a thread that acts as a process manager: it answers each received line with the next of
    /// `answers`. Returns the client's socket, and the thread. The thread returns the received lines.
    fn manager(answers: Vec<&'static str>) -> (UnixStream, std::thread::JoinHandle<Vec<String>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let manager = std::thread::spawn(move || {
            let mut stream = BufReader::new(theirs);
            let mut lines = Vec::new();
            for answer in answers {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                lines.push(line.trim_end().to_string());
                let _ = stream.get_mut().write_all(answer.as_bytes());
            }
            lines
        });
        (ours, manager)
    }

    const HELLO: [&str; 2] =
        ["cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n", "cmd=my_kvsname kvsname=kvs_7\n"];

    #[test]
    fn texts_are_exchanged() {
        let answers = [
            HELLO[0],
            HELLO[1],
            "cmd=put_result rc=0 msg=success\n",
            "cmd=barrier_out\n",
            "cmd=get_result rc=0 msg=success value=a=b\n",
            "cmd=finalize_ack\n",
        ];
        let (stream, manager) = manager(answers.to_vec());
        let mut pmi = Pmi::over(stream, 1, 4).unwrap();
        assert_eq!((pmi.rank(), pmi.size()), (1, 4));
        pmi.put("card", "x:y").unwrap();
        pmi.fence().unwrap();
        assert_eq!(pmi.get(0, "card").unwrap(), "a=b");
        pmi.finish().unwrap();
        let expected = [
            "cmd=init pmi_version=1 pmi_subversion=1",
            "cmd=get_my_kvsname",
            "cmd=put kvsname=kvs_7 key=card-1 value=x:y",
            "cmd=barrier_in",
            "cmd=get kvsname=kvs_7 key=card-0",
            "cmd=finalize",
        ];
        assert_eq!(manager.join().unwrap(), expected);
    }

    #[test]
    fn bad_answers_are_errors() {
        for answers in [
            vec!["cmd=response_to_init rc=-1\n"],
            vec!["cmd=response_to_init pmi_version=2 rc=0\n"],
            vec!["nonsense\n"],
            vec!["cmd=response_to_init pmi_version=1"],
            vec![HELLO[0], "cmd=my_kvsname\n"],
        ] {
            let (stream, _manager) = manager(answers.clone());
            assert!(Pmi::over(stream, 0, 2).is_err(), "{answers:?}");
        }
        let (stream, _manager) = manager(vec![HELLO[0], HELLO[1], "cmd=get_result rc=-1 msg=no\n"]);
        let mut pmi = Pmi::over(stream, 0, 2).unwrap();
        let error = pmi.get(1, "card").unwrap_err().to_string();
        assert!(error.contains("rc=-1"), "{error}");
        let (stream, _manager) = manager(vec![]);
        assert!(Pmi::over(stream, 2, 2).is_err(), "no such rank");
    }

    /// A process manager that sends the given bytes, whatever the request is.
    struct Sends(std::io::Cursor<Vec<u8>>);

    impl Read for Sends {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(into)
        }
    }

    impl Write for Sends {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_taken_or_refused(bytes: Vec<u8>, begins_well: bool) {
            let begin = if begins_well { HELLO.concat().into_bytes() } else { Vec::new() };
            let stream = Sends(std::io::Cursor::new([begin, bytes].concat()));
            if let Ok(mut pmi) = Pmi::over(stream, 0, 2) {
                let _ = (pmi.put("a", "b"), pmi.fence(), pmi.get(1, "a"), pmi.finish());
            }
        }
    }
}
