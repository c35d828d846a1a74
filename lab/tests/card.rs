//! `inlane forward` between network cards under vfio-pci, in a virtual machine. The cards are QEMU's e1000e
//! and virtio-net. An emulated IOMMU limits the cards to the memory that was mapped for DMA. The test runs
//! outside the machine. It sends frames into the cards and checks the frames that the cards send.
//!
//! ```text
//!   this test  ==datagrams==>  card A  --DMA-->  inlane's pool  --DMA-->  card B  ==datagrams==>  this test     and back
//! ```

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The most frames in flight in one direction.
const WINDOW: u32 = 16;

/// The number of received frames after which the set-up of both cards is certainly complete. Frames before
/// that may be lost, because QEMU drops the frames of a card during its reset.
const SET_UP: u64 = 100;

/// The sockets of a card. The card receives the frames that the test sends to `into`. The frames that the
/// card sends arrive at `out`.
struct Card {
    into: PathBuf,
    out: UnixDatagram,
}

impl Card {
    fn new(folder: &Path, name: &str) -> Self {
        let into = folder.join(name);
        let out = UnixDatagram::bind(folder.join(format!("{name}.out"))).unwrap();
        out.set_nonblocking(true).unwrap();
        Self { into, out }
    }

    fn option(&self, model: &str) -> String {
        format!("{model}:{}", self.into.display())
    }
}

/// The traffic from one card to another.
#[derive(Debug, Default)]
struct Direction {
    /// The number of frames that the test has sent into the first card.
    sent: u32,
    /// The number of the next frame that is expected.
    next: u32,
    /// The number of frames that the test has received from the second card.
    received: u64,
    /// The ranges of frame numbers that were lost after the cards were set up.
    lost: Vec<std::ops::Range<u32>>,
}

impl Direction {
    /// Sends frames until [`WINDOW`] frames are in flight. Before the first frame is received, sent frames do
    /// not count as in flight, because inlane may not run yet.
    fn send(&mut self, sender: &UnixDatagram, from: &Card) {
        while self.sent - self.next < WINDOW && sender.send_to(&frame(self.sent), &from.into).is_ok() {
            self.sent += 1;
        }
        if self.received == 0 {
            self.next = self.sent;
        }
    }

    /// Receives frames. Each must equal the sent frame with swapped addresses, and frames must arrive in
    /// order.
    fn receive(&mut self, to: &Card) {
        let mut buffer = [0; 2048];
        while let Ok(length) = to.out.recv(&mut buffer) {
            let got = &buffer[..length];
            let number = u32::from_be_bytes(got[14..18].try_into().unwrap());
            let mut wanted = frame(number);
            wanted[..12].rotate_left(6);
            assert!(got == wanted, "frame {number} was altered");
            if self.received > 0 {
                assert!(number >= self.next, "frame {number} was received after frame {}", self.next);
                if number > self.next && self.received > SET_UP {
                    self.lost.push(self.next..number);
                }
            }
            (self.received, self.next) = (self.received + 1, number + 1);
        }
    }
}

/// Returns the content of frame `number`. Length and bytes depend on the number, so frames cannot be
/// confused.
fn frame(number: u32) -> Vec<u8> {
    let mut frame = b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x88\xb5".to_vec();
    frame.extend(number.to_be_bytes());
    let length = 60 + (number.wrapping_mul(2_654_435_761) >> 8) % 1455;
    frame.extend((18..length).map(|at| (at ^ number) as u8));
    frame
}

/// Sends and receives frames in both directions through each pair of cards, until the virtual machine ends.
fn exchange(machine: &mut Child, pairs: &[[&Card; 2]]) -> Vec<[Direction; 2]> {
    let sender = UnixDatagram::unbound().unwrap();
    sender.set_nonblocking(true).unwrap();
    let mut directions: Vec<[Direction; 2]> = pairs.iter().map(|_| Default::default()).collect();
    let start = Instant::now();
    loop {
        let ended = machine.try_wait().unwrap().is_some();
        for ([a, b], [forth, back]) in pairs.iter().zip(&mut directions) {
            for (direction, from, to) in [(forth, a, b), (back, b, a)] {
                direction.receive(to);
                direction.send(&sender, from);
            }
        }
        if ended {
            return directions;
        }
        assert!(start.elapsed() < Duration::from_secs(200), "the machine does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn packets_go_from_card_to_card() {
    const TEST: &str = "packets_go_from_card_to_card";
    // Look for `inlane` in the directory of this package's programs, because cargo builds both into the same
    // directory.
    let inlane = Path::new(env!("CARGO_BIN_EXE_pci-check")).with_file_name("inlane");
    if !inlane.exists() {
        eprintln!("SKIPPED {TEST}: no {}; build it with: cargo build -p inlane", inlane.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cards = ["a", "b", "c", "d", "e"].map(|name| Card::new(folder.path(), name));
    let [a, b, c, d, held] = &cards;
    let run = |number: u32, function: &str, first: &str, second: &str| {
        // Each pool is so small that it fits into one huge page. A buffer may otherwise cross into a page
        // that is not adjacent in the machine's memory. QEMU's e1000e then drops the frame.
        format!(
            "inlane forward --between pci:0000:00:{first}.0,descriptors=128 pci:0000:00:{second}.0,descriptors=128 \
             --buffers 800 --function {function} --duration 4s --json /tmp/{number} >&2; echo status $?; "
        )
    };
    let script = run(1, "macswap", "01", "02")
        + &run(2, "macswap --method split", "03", "04")
        + "inlane forward --rx pci:0000:00:05.0 --tx null 2>&1; echo status $?; \
           echo 0000:00:05.0 >/sys/bus/pci/drivers/pci-stub/unbind; \
           inlane forward --rx pci:0000:00:05.0 --tx null 2>&1; echo status $?; \
           inlane doctor vfio 2>&1; \
           for n in 1 2; do echo; echo document; cat /tmp/$n; done";
    let mut machine = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("vm/run.py"))
        .args(["--memory", "1G", "--timeout", "180", "--iommu"])
        .args(["--card", &a.option("e1000e"), "--card", &b.option("e1000e")])
        .args(["--card", &c.option("virtio-net-pci"), "--card", &d.option("virtio-net-pci")])
        .args(["--card", &held.option("e1000e"), "--bind", "pci-stub=0000:00:05.0"])
        .args(["--vfio", "0000:00:01.0", "--vfio", "0000:00:02.0"])
        .args(["--vfio", "0000:00:03.0", "--vfio", "0000:00:04.0"])
        .args(["--file", inlane.to_str().unwrap(), "--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(fs::File::create(folder.path().join("stdout")).unwrap())
        .stderr(fs::File::create(folder.path().join("stderr")).unwrap())
        .spawn()
        .unwrap();
    let directions = exchange(&mut machine, &[[a, b], [c, d]]);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let (text, errors) = (read("stdout"), read("stderr"));
    let status = machine.wait().unwrap();
    if status.code() == Some(3) && errors.contains("virtual machines need") {
        eprintln!("SKIPPED {TEST}: {}", errors.trim().replace('\n', "; "));
        return;
    }
    assert!(status.success(), "{status}\n{text}\n{errors}");
    let statuses: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("status ")).collect();
    assert_eq!(statuses, ["0", "0", "3", "3"], "{text}\n{errors}");
    assert!(text.contains("the kernel's driver pci-stub uses 0000:00:05.0"), "{text}");
    assert!(
        text.contains(
            "no driver is bound to 0000:00:05.0; bind it: dpdk-devbind.py --bind=vfio-pci 0000:00:05.0"
        ),
        "{text}"
    );
    assert!(text.contains("0000:00:01.0") && text.contains("vfio"), "{text}");

    let documents: Vec<serde_json::Value> =
        text.split("\ndocument\n").skip(1).map(|json| serde_json::from_str(json).unwrap()).collect();
    for (document, (directions, driver)) in
        documents.iter().zip(directions.iter().zip(["net_e1000_em", "net_virtio"]))
    {
        let result = &document["results"][0];
        let hops = result["path"]["hops"].to_string();
        assert!(hops.contains(&format!("DPDK {driver} on 0000:00:0")), "{hops}");
        assert!(directions.iter().all(|direction| direction.received > 200), "{directions:?}");
        assert!(directions.iter().all(|direction| direction.lost.is_empty()), "{directions:?} {result}");
        // The cards delivered and sent every frame. So inlane's counters must equal the number of frames that
        // the test received.
        let received: u64 = directions.iter().map(|direction| direction.received).sum();
        assert_eq!(result["tx"]["packets"], received, "{directions:?} {result}");
        assert_eq!(result["rx"]["packets"], received, "{directions:?} {result}");
        for count in ["leaked_buffers", "dropped_unsent", "dropped_invalid"] {
            assert_eq!(result[count], 0, "{result}");
        }
    }
    assert_eq!(documents.len(), 2);
}
