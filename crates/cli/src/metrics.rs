//! `--metrics ADDRESS:PORT`: a page with counters for Prometheus, in Prometheus' text format.
//!
//! The page is made for each request from a snapshot, so nothing is counted twice and no hot path does more work. One thread
//! answers one request after another, within a time limit. It serves nothing but this page.

mod engine;
mod forward;
mod target;

pub use engine::page as engine_page;
pub use forward::page as forward_page;
pub use target::page as target_page;

use crate::exit::NotReady;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// How long a request and its answer may take together.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The most bytes of a request.
const MOST_BYTES: usize = 8192;

/// The labels of a sample.
pub type Labels = Vec<(&'static str, String)>;

/// A page that is being made, in Prometheus' text format 0.0.4, which every version of Prometheus and promtool reads.
pub struct Page(String);

impl Page {
    /// Creates a page with the version of this program.
    pub fn new() -> Self {
        let mut page = Self(String::new());
        let labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        page.gauge("build_info", "The program; the value is always 1", [(labels, 1.0)]);
        page
    }

    /// Adds a counter: `inlane_NAME_total`, with a sample for each set of labels.
    pub fn counter(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Labels, u64)>) {
        self.family(&format!("{name}_total"), "counter", help, samples);
    }

    /// Adds a counter of seconds: `inlane_NAME_seconds_total`.
    pub fn seconds(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Labels, u64)>) {
        let samples = samples.into_iter().map(|(labels, nanoseconds)| (labels, nanoseconds as f64 / 1e9));
        self.family(&format!("{name}_seconds_total"), "counter", help, samples);
    }

    /// Adds a gauge: `inlane_NAME`.
    pub fn gauge(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Labels, f64)>) {
        self.family(name, "gauge", help, samples);
    }

    /// Adds a family of samples. Adds up samples with the same labels, such as those of a port that a run names twice.
    fn family<V: Display + Default + AddAssign>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) {
        let mut sums: BTreeMap<Labels, V> = BTreeMap::new();
        for (labels, value) in samples {
            *sums.entry(labels).or_default() += value;
        }
        self.0 += &format!("# HELP inlane_{name} {help}.\n# TYPE inlane_{name} {kind}\n");
        for (labels, value) in sums {
            let labels: Vec<_> =
                labels.iter().map(|(label, text)| format!("{label}=\"{}\"", escaped(text))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            self.0 += &format!("inlane_{name}{labels} {value}\n");
        }
    }

    /// Returns the text of the page.
    pub fn text(self) -> String {
        self.0
    }
}

/// Returns the value of a label as it stands between quotes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Listens on `address`, and serves what `page` returns until the process ends. `page` gives a reason if it has no page now.
///
/// # Errors
/// If the address cannot be used.
pub fn serve(
    address: SocketAddr,
    page: impl Fn() -> Result<String, String> + Send + 'static,
) -> anyhow::Result<()> {
    let failed = |error: io::Error| {
        let what = crate::fields::flag("metrics").with(address);
        NotReady(format!(
            "{what}: cannot listen there: {error}; choose an address of this machine and a free port"
        ))
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    crate::print_to_stderr(format_args!("inlane: metrics on http://{address}/metrics"));
    std::thread::Builder::new().name("inlane-metrics".into()).spawn(move || {
        for stream in listener.incoming() {
            match stream {
                // A client that leaves early or sends nonsense is its own loss.
                Ok(stream) => drop(answer(stream, &page)),
                // No descriptor is free, for example. Trying again at once would keep a core busy.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    })?;
    Ok(())
}

fn answer(mut stream: TcpStream, page: &impl Fn() -> Result<String, String>) -> io::Result<()> {
    let deadline = Instant::now() + ANSWER_WITHIN;
    let request = read_request(&mut stream, deadline)?;
    let (status, kind, body) = match request.split(' ').collect::<Vec<_>>()[..] {
        ["GET", "/metrics", _] => match page() {
            Ok(page) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", page),
            Err(why) => ("503 Service Unavailable", "text/plain", format!("{why}\n")),
        },
        ["GET", _, _] => ("404 Not Found", "text/plain", "the page is /metrics\n".to_owned()),
        [_, _, _] => ("405 Method Not Allowed", "text/plain", "use GET\n".to_owned()),
        _ => ("400 Bad Request", "text/plain", "this is no request of HTTP\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    stream.write_all((head + &body).as_bytes())
}

/// Reads the head of a request. Returns its first line.
fn read_request(stream: &mut TcpStream, deadline: Instant) -> io::Result<String> {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || bytes.len() >= MOST_BYTES {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut some = [0; 1024];
        match stream.read(&mut some) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&some[..count]),
            // Stopping and continuing the process interrupts a read with a timeout.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests;
