//! Runs packet functions on bursts of frames, and checks that no byte around a frame changes.

#![allow(dead_code, reason = "each test file uses a part")]

use inlane_core::packet::Packet;
use inlane_core::ring::layout::{DROP, Descriptor, FORWARD, PacketVerdict, UNCHANGED, VERDICTS};
use inlane_function::{Instance, PacketFunction};

/// The guard bytes before and after each frame. A change shows that a function wrote outside the frame.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;

/// What a packet function did with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The function forwarded the frame with these bytes.
    Forward(Vec<u8>),
    /// The function sent the frame, with these bytes, to the port with this number.
    Port(u32, Vec<u8>),
    /// The function dropped the frame.
    Drop,
}

/// Creates an instance of the function that `text` names.
pub fn instance(text: &str) -> Instance {
    PacketFunction::parse(text).expect(text).instance().expect(text)
}

/// Runs the instance's function on frames in bursts of `burst`, and returns what became of each frame. Calls
/// the function with packets if `as_packets` is set, else with descriptors. The frames' addresses are a
/// multiple of 64 plus `shift`.
pub fn run_shaped(
    instance: &mut Instance,
    frames: &[Vec<u8>],
    burst: usize,
    as_packets: bool,
    shift: usize,
    now_ns: u64,
) -> Vec<Fate> {
    run_by(frames, burst, shift, |descriptors, verdicts| {
        // SAFETY: `run_by` owns the buffers, and nothing else uses them.
        unsafe {
            if as_packets {
                let packet =
                    |at: &Descriptor| Packet { address: at.address, length: at.length, port: 7, cookie: !0 };
                let packets: Vec<Packet> = descriptors.iter().map(packet).collect();
                instance.run_packets(&packets, verdicts, now_ns)
            } else {
                instance.run_descriptors(descriptors, verdicts, now_ns)
            }
        }
    })
}

/// Passes frames to `run` in bursts, and returns what became of each frame. Panics if bytes outside a frame
/// or needless verdicts were written. `run` processes one burst and returns `UNCHANGED` or `VERDICTS`.
pub fn run_by(
    frames: &[Vec<u8>],
    burst: usize,
    shift: usize,
    mut run: impl FnMut(&[Descriptor], &mut [PacketVerdict]) -> u32,
) -> Vec<Fate> {
    let mut fates = Vec::new();
    for frames in frames.chunks(burst) {
        // Allocate each frame separately, so that a sanitizer finds accesses outside the frame.
        let mut buffers: Vec<Vec<u8>> = frames
            .iter()
            .map(|frame| {
                let mut buffer = vec![GUARD_BYTE; 64 + GUARD + shift + frame.len() + GUARD];
                let start = start_of(&buffer, shift);
                buffer[start..start + frame.len()].copy_from_slice(frame);
                buffer
            })
            .collect();
        let descriptors: Vec<Descriptor> = buffers
            .iter_mut()
            .zip(frames)
            .map(|(buffer, frame)| {
                let address = buffer.as_mut_ptr() as u64 + start_of(buffer, shift) as u64;
                Descriptor { address, length: frame.len() as u32, lap: 0 }
            })
            .collect();
        let untouched = PacketVerdict { length: 0xdead_beef, verdict: 0xdead_beef };
        let mut verdicts = vec![untouched; frames.len()];
        let info = run(&descriptors, &mut verdicts);
        match info {
            UNCHANGED => {
                assert!(
                    verdicts.iter().all(|verdict| *verdict == untouched),
                    "verdicts were written for an unchanged burst"
                );
                for (outcome, frame) in verdicts.iter_mut().zip(frames) {
                    *outcome = PacketVerdict { length: frame.len() as u32, verdict: FORWARD };
                }
            }
            VERDICTS => {}
            other => panic!("info {other}"),
        }
        for ((buffer, frame), outcome) in buffers.iter().zip(frames).zip(&verdicts) {
            let start = start_of(buffer, shift);
            let end = start + frame.len();
            assert!(
                buffer[..start].iter().chain(&buffer[end..]).all(|&byte| byte == GUARD_BYTE),
                "bytes outside a frame of {} were written",
                frame.len()
            );
            let bytes = || {
                assert!(outcome.length as usize <= frame.len(), "the packet grew without room");
                buffer[start..start + outcome.length as usize].to_vec()
            };
            fates.push(match outcome.verdict {
                FORWARD => Fate::Forward(bytes()),
                DROP => Fate::Drop,
                port => Fate::Port(port - 2, bytes()),
            });
        }
    }
    fates
}

fn start_of(buffer: &[u8], shift: usize) -> usize {
    (buffer.as_ptr() as usize + GUARD).next_multiple_of(64) + shift - buffer.as_ptr() as usize
}

/// Runs the instance's function on frames in bursts of 32 at aligned addresses.
pub fn run(instance: &mut Instance, frames: &[Vec<u8>]) -> Vec<Fate> {
    run_shaped(instance, frames, 32, true, 0, 0)
}
