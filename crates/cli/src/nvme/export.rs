//! `inlane nvme export`: gives other programs access to a namespace.

use super::connect::{Connect, Stop};
use crate::output::Output;
use clap::{Args, Subcommand};
use inlane_nbd::{ExportResult, ListenAddress, Server};
use inlane_result::Document;

/// The most commands that the session of each NBD client keeps in flight.
const DEPTH: u32 = 127;

/// Gives other programs a namespace as a block device
#[derive(Args)]
#[command(after_help = "\
Example:
  inlane nvme export nbd 10.0.0.2 --listen unix:/tmp/disk.sock")]
pub struct Export {
    #[command(subcommand)]
    protocol: Protocol,
}

#[derive(Subcommand)]
enum Protocol {
    Nbd(Nbd),
}

/// Serves a namespace as a network block device (NBD)
///
/// No kernel module is needed: qemu, fio, nbdcopy and others are NBD clients. Runs until a signal ends it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane nvme export nbd 10.0.0.2 --listen unix:/tmp/disk.sock
  qemu-img convert -O raw image.qcow2 nbd:unix:/tmp/disk.sock
  fio --name=read --ioengine=nbd --uri=nbd+unix:///?socket=/tmp/disk.sock --rw=randread")]
struct Nbd {
    #[command(flatten)]
    connect: Connect,
    /// Where NBD clients connect: unix:PATH or HOST:PORT. NBD has no authentication: whoever can connect can
    /// read and write
    #[arg(long, value_name = "LISTENER", default_value = "127.0.0.1:10809")]
    listen: ListenAddress,
    /// Write the counters at the end as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
}

impl Export {
    /// Serves clients until a signal arrives.
    ///
    /// # Errors
    /// If the namespace cannot be accessed, or the server cannot listen.
    pub fn run(&self) -> anyhow::Result<()> {
        let Protocol::Nbd(nbd) = &self.protocol;
        nbd.run()
    }
}

impl Nbd {
    fn run(&self) -> anyhow::Result<()> {
        let output = Output::open(self.json.as_deref(), None, None)?;
        let stop = Stop::on_signal()?;
        let options = self.connect.session(DEPTH)?;
        let server = Server::bind(&self.listen, &options)?;
        let stop = stop.begin();
        let namespace = server.namespace();
        crate::print_to_stderr(format_args!(
            "inlane: namespace {} of {} ({} bytes) is exported at {}",
            namespace.nsid,
            options.connect.subsystem,
            namespace.bytes(),
            server.address(),
        ));
        server.run(stop, &|text| crate::print_to_stderr(format_args!("inlane: {text}")));
        let mut document = Document::<ExportResult>::new("nvme export nbd");
        document.results = vec![server.result()];
        output.write(
            &mut document,
            |out, document| out.write_all(inlane_report::text(document).as_bytes()),
            |_| None,
        )
    }
}
