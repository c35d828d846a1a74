//! `inlane nvme read` and `inlane nvme write`: copy between a namespace and a file or device memory.

use super::connect::{Connect, Stop};
use super::device::{DeviceMemory, parse_endpoint};
use super::timed_stream::TimedStream;
use super::transfer_result::NvmeTransfer;
use crate::fields::flag;
use anyhow::Context;
use clap::Args;
use inlane_copy::Endpoint;
use inlane_core::units;
use inlane_nvme::Error;
use inlane_nvme::initiator::{
    Session, check_range, check_stop, read_range, read_to, write_from, write_range,
};
use inlane_report::OutputTarget;
use inlane_result::{Document, Start};
use std::fs::{File, Metadata};
use std::io::{self, Seek as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The number of commands that a transfer keeps in flight.
const DEPTH: u32 = 16;

/// Copies a range of a namespace to a file, or to memory of a device
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane nvme read 10.0.0.2 drive.img     the whole namespace
  inlane nvme read 10.0.0.2 --offset 1M --length 4K - | xxd
                                          a few blocks to standard output
  inlane nvme read 10.0.0.2 --length 1G --to gpu:0 --json -
                                          into memory of a GPU; shows the path, and checks the bytes there")]
pub struct Read {
    #[command(flatten)]
    connect: Connect,
    /// Start of the range in the namespace, at any byte
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::parse_size)]
    offset: u64,
    /// Length of the range [default: up to the end of the namespace]
    #[arg(long, alias = "size", value_name = "SIZE", value_parser = units::parse_size)]
    length: Option<u64>,
    /// Read into memory of this device: gpu:N, or twin:N (a model of an accelerator). inlane takes the path with
    /// the least cost. The bytes are read back from the device, checked, and written to FILE if it is given
    #[arg(long, value_name = "DEVICE", value_parser = parse_endpoint)]
    to: Option<Endpoint>,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
    /// File to write, or - for standard output
    #[arg(value_name = "FILE|-", required_unless_present = "to")]
    file: Option<PathBuf>,
}

/// Copies a file to a namespace and flushes it
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane nvme write 10.0.0.2 drive.img    from the start of the namespace
  inlane nvme write 10.0.0.2 --offset 1M --length 4K - < block
                                          4 KiB of standard input
  inlane nvme write 10.0.0.2 --from gpu:0 drive.img
                                          the file to memory of a GPU first, then from there")]
pub struct Write {
    #[command(flatten)]
    connect: Connect,
    /// Where to write in the namespace; a multiple of its block size
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::parse_size)]
    offset: u64,
    /// Bytes to write; a multiple of the block size [default: up to the end of the file]
    #[arg(long, alias = "size", value_name = "SIZE", value_parser = units::parse_size)]
    length: Option<u64>,
    /// Copy the file to memory of this device first, then write from there: gpu:N, or twin:N (a model of an
    /// accelerator). inlane takes the path with the least cost. The reported time is without the first copy
    #[arg(long, value_name = "DEVICE", value_parser = parse_endpoint)]
    from: Option<Endpoint>,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
    /// File to read, or - for standard input
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
}

/// A JSON output that is opened before the transfer and written after it.
struct Json(Option<OutputTarget>, Start);

impl Json {
    fn open(json: Option<&str>, data: Option<&Path>) -> anyhow::Result<Self> {
        if json == Some("-") && data == Some(Path::new("-")) {
            let why = "would get both the data and the JSON; give --json a file".into();
            return Err(Error::Invalid { what: "standard output".into(), why }.into());
        }
        Ok(Self(json.map(OutputTarget::open).transpose()?, Start::now()))
    }

    /// Prints the result to standard error and writes the JSON. Returns an error if the bytes on the device
    /// were wrong.
    fn write(self, command: &str, row: NvmeTransfer) -> anyhow::Result<()> {
        for line in row.lines() {
            crate::print_to_stderr(format_args!("inlane: {line}"));
        }
        let wrong = row.error.clone();
        if let Some(json) = self.0 {
            let mut document = Document::<NvmeTransfer>::new(command);
            document.results = vec![row];
            document.finish(self.1);
            json.json(&document)?;
        }
        match wrong {
            Some(wrong) => Err(wrong.into()),
            None => Ok(()),
        }
    }
}

impl Read {
    /// Copies the range, and prints how much was copied.
    ///
    /// # Errors
    /// If the connection, a command, the device or the file fails.
    pub fn run(&self) -> anyhow::Result<()> {
        let json = Json::open(self.json.as_deref(), self.file.as_deref())?;
        let stop = Stop::on_signal()?;
        let options = self.connect.session(DEPTH)?;
        let mut session = Session::open(&options)?;
        let stop = stop.begin();
        let rest = session.namespace().bytes().saturating_sub(self.offset);
        let length = self.length.unwrap_or(rest);
        check_range(&session, self.offset, length)?;
        let mut idle = || check_stop(stop).and_then(|()| session.progress(false));
        let mut output = self.file.as_deref().map(|path| Destination::open(path, &mut idle)).transpose()?;
        let row = match &self.to {
            Some(endpoint) => self.read_to_device(endpoint, &mut session, length, output.as_mut(), stop)?,
            None => {
                let output = output.as_mut().expect("clap requires a file");
                let started = Instant::now();
                read_range(&mut session, self.offset, length, output.stream(), stop)
                    .with_context(|| format!("copying to {}", output.name()))?;
                NvmeTransfer::new("read", &session, [self.offset, length], started.elapsed())
            }
        };
        if let Some(output) = output {
            output.close()?;
        }
        session.close();
        json.write("nvme read", row.of(&options))
    }

    fn read_to_device(
        &self,
        endpoint: &Endpoint,
        session: &mut Session,
        length: u64,
        mut output: Option<&mut Destination>,
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<NvmeTransfer> {
        if length == 0 {
            let why = "there is nothing to read into a device; give at least 1".into();
            return Err(Error::Invalid { what: flag("length").with(0).into(), why }.into());
        }
        let memory = DeviceMemory::allocate(endpoint, length, stop)?;
        let mut sink = memory.sink()?;
        let started = Instant::now();
        read_to(session, self.offset, length, &mut sink, stop)?;
        sink.finish()?;
        let run = started.elapsed();
        // The session is needed no more, but the target reports hosts that fall silent.
        let mut idle = || {
            let _ = session.progress(false);
            check_stop(stop)
        };
        let verification = sink.read_back(|bytes| {
            idle()?;
            match &mut output {
                Some(output) => write_all(output.stream(), bytes, &mut idle),
                None => Ok(()),
            }
        })?;
        let row = NvmeTransfer::new("read", session, [self.offset, length], run);
        let path = sink.path(&session.path().to_string());
        Ok(row.on_device(endpoint, path, memory.is_twin(), verification))
    }
}

/// Writes all bytes, however long the other side of a pipe takes. Calls `idle` before each write.
fn write_all(
    stream: &mut dyn io::Write,
    mut bytes: &[u8],
    idle: &mut dyn FnMut() -> inlane_nvme::Result<()>,
) -> inlane_nvme::Result<()> {
    let failed = |source| Error::Os { what: "cannot write the data".into(), source };
    while !bytes.is_empty() {
        idle()?;
        match stream.write(bytes) {
            Ok(0) => return Err(failed(io::ErrorKind::WriteZero.into())),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// Where `read` writes the data: a file, or a pipe such as standard output.
enum Destination {
    File(File, PathBuf),
    Stream(TimedStream, String),
}

impl Destination {
    /// Opens the file. A named pipe can be opened only once a reader has opened it. Calls `idle` until then.
    fn open(path: &Path, idle: &mut dyn FnMut() -> inlane_nvme::Result<()>) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            let descriptor = io::stdout().as_fd().try_clone_to_owned();
            let stream = TimedStream::new(descriptor.context("cannot write to standard output")?);
            return Ok(Destination::Stream(stream, "standard output".into()));
        }
        let shown = path.display();
        let is_pipe = |file: io::Result<Metadata>| file.is_ok_and(|file| file.file_type().is_fifo());
        let file = if is_pipe(std::fs::metadata(path)) {
            loop {
                match File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path) {
                    Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                        idle()?;
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    opened => break opened,
                }
            }
        } else {
            File::create(path)
        };
        let file =
            file.map_err(|source| match path.is_dir() || source.kind() == io::ErrorKind::IsADirectory {
                true => Error::Invalid {
                    what: shown.to_string().into(),
                    why: "it is a directory; name a file in it".into(),
                },
                false => {
                    let what = format!("cannot create {shown}");
                    Error::with_remedy(what, source, "name a file that you may write")
                }
            })?;
        match is_pipe(file.metadata()) {
            true => Ok(Destination::Stream(TimedStream::new(file.into()), shown.to_string())),
            false => Ok(Destination::File(file, path.into())),
        }
    }

    fn stream(&mut self) -> &mut dyn io::Write {
        match self {
            Destination::File(file, _) => file,
            Destination::Stream(stream, _) => stream,
        }
    }

    fn name(&self) -> String {
        match self {
            Destination::File(_, path) => path.display().to_string(),
            Destination::Stream(_, name) => name.clone(),
        }
    }

    /// Syncs a regular file to its disk (fsync). Does nothing for pipes and devices.
    fn close(mut self) -> anyhow::Result<()> {
        let name = self.name();
        match &mut self {
            // Sync only regular files. fsync fails for pipes and for devices such as /dev/null.
            Destination::File(file, _) if file.metadata().is_ok_and(|file| file.is_file()) => file.sync_all(),
            Destination::File(..) | Destination::Stream(..) => Ok(()),
        }
        .with_context(|| format!("cannot write {name}"))
    }
}

impl Write {
    /// Copies the file, flushes the namespace, and prints how much was copied.
    ///
    /// # Errors
    /// If the connection, a command, the device or the file fails.
    pub fn run(&self) -> anyhow::Result<()> {
        let json = Json::open(self.json.as_deref(), None)?;
        let stop = Stop::on_signal()?;
        let (mut input, size) = self.open()?;
        let options = self.connect.session(DEPTH)?;
        let mut session = Session::open(&options)?;
        let stop = stop.begin();
        if let Some(size) = size {
            self.check_room(size, session.namespace().bytes())?;
            self.check_blocks(size, session.namespace().block_bytes.into())?;
        }
        // Pass the length if it is known: the given length, or the file's size. With a length, `write_range`
        // refuses a range beyond the end of the namespace before it writes anything.
        let length = self.length.or(size);
        let shown = self.file.display();
        let row = match &self.from {
            Some(endpoint) => {
                let Some(length) = length.filter(|length| *length > 0) else {
                    let why = "the length of the input is unknown; give it, for example --length 1M".into();
                    return Err(Error::Invalid { what: flag("length").into(), why }.into());
                };
                let memory = DeviceMemory::allocate(endpoint, length, stop)?;
                let mut idle = || check_stop(stop).and_then(|()| session.progress(false));
                let source = memory.source(&mut input, &mut idle);
                let mut source = source.with_context(|| format!("copying {shown} to {endpoint}"))?;
                let started = Instant::now();
                let written = write_from(&mut session, self.offset, Some(length), &mut source, stop)?;
                let row = NvmeTransfer::new("write", &session, [self.offset, written], started.elapsed());
                let path = source.path(&session.path().to_string());
                row.on_device(endpoint, path, memory.is_twin(), source.verification())
            }
            None => {
                let started = Instant::now();
                let written = write_range(&mut session, self.offset, length, &mut input, stop)
                    .with_context(|| format!("copying from {shown}"))?;
                NvmeTransfer::new("write", &session, [self.offset, written], started.elapsed())
            }
        };
        session.close();
        json.write("nvme write", row.of(&options))
    }

    /// Checks that the size of the file is a multiple of the block size. With --length, accepts any size,
    /// because only that many bytes are copied.
    fn check_blocks(&self, size: u64, block: u64) -> anyhow::Result<()> {
        let whole = size / block * block;
        if self.length.is_some() || size == whole {
            return Ok(());
        }
        let rest = if whole > 0 {
            format!(", or give --length {whole} to leave the rest out")
        } else {
            String::new()
        };
        let why = format!(
            "it has {size} bytes, and the blocks of the namespace have {block}; nothing was written; append zeros up to a \
             multiple ('truncate --size %{block}'){rest}"
        );
        Err(Error::Invalid { what: self.file.display().to_string().into(), why }.into())
    }
}

impl Write {
    /// Opens the input. Returns a reader, and the size of the input if it is a file or a block device.
    fn open(&self) -> anyhow::Result<(Box<dyn io::Read>, Option<u64>)> {
        if self.file.as_path() == Path::new("-") {
            let descriptor =
                io::stdin().as_fd().try_clone_to_owned().context("cannot read standard input")?;
            return Ok((Box::new(TimedStream::new(descriptor)), None));
        }
        let shown = self.file.display();
        let os = |source| {
            Error::with_remedy(format!("cannot open {shown}"), source, "name a file that you may read")
        };
        let mut file = File::open(&self.file).map_err(os)?;
        let kind = file.metadata().map_err(os)?.file_type();
        if kind.is_dir() {
            let why = "it is a directory; name a file".into();
            return Err(Error::Invalid { what: shown.to_string().into(), why }.into());
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Ok((Box::new(TimedStream::new(file.into())), None));
        }
        let size = file.seek(io::SeekFrom::End(0)).map_err(os)?;
        file.rewind().map_err(os)?;
        // Treat the size 0 as unknown, because files of /proc have size 0 although they have contents.
        let size = Some(size).filter(|size| *size > 0);
        if let (Some(size), Some(length)) =
            (size, self.length.filter(|length| size.is_some_and(|size| size < *length)))
        {
            let why = format!(
                "it has {}, less than --length {}; nothing was written; leave out --length",
                units::bytes(size),
                units::bytes(length)
            );
            return Err(Error::Invalid { what: shown.to_string().into(), why }.into());
        }
        Ok((Box::new(file), size))
    }

    /// Without `--length`, checks that a file of `size` bytes fits into the namespace.
    fn check_room(&self, size: u64, namespace: u64) -> anyhow::Result<()> {
        let room = namespace.saturating_sub(self.offset);
        if self.length.is_some() || size <= room || room == 0 {
            return Ok(());
        }
        let why = format!(
            "it has {}, and the namespace has {} from --offset {}; nothing was written; give --length {room} to copy its \
             beginning, or choose a larger namespace",
            units::bytes(size),
            units::bytes(room),
            units::bytes(self.offset)
        );
        Err(Error::Invalid { what: self.file.display().to_string().into(), why }.into())
    }
}
