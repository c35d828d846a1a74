//! The functions that inlane brings: sources in `functions/`, compiled into it by build.rs; here what each is, how its
//! settings are read and what it reports.

mod flows;
mod oran;
mod rules;

pub use flows::{Flow, flows};
pub use oran::{OranSlot, Reason, oran_slot};

use crate::abi::FunctionEntry;
use crate::report::FunctionReport;

/// A function as build.rs compiled it.
pub(crate) struct Built {
    /// Its struct in the source.
    pub symbol: &'static str,
    /// Its file's name.
    pub file: &'static str,
    pub source: &'static str,
    any: *const FunctionEntry,
    avx2: *const FunctionEntry,
}

// SAFETY: the pointers are to constants.
unsafe impl Sync for Built {}

include!(concat!(env!("OUT_DIR"), "/builtins.rs"));

/// A built-in function.
pub struct Builtin {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// How its settings are written, after its name and a colon; empty when it has none.
    pub syntax: &'static str,
    /// How it may be written on a command line.
    pub example: &'static str,
    /// Reads its settings into the beginning of its state.
    pub(crate) settings: fn(&str) -> Result<Vec<u8>, String>,
    /// Reads its state, with its settings.
    pub(crate) report: fn(&[u8], &str) -> FunctionReport,
}

/// All of them, in the order of a list for users.
pub fn builtins() -> &'static [Builtin] {
    &BUILTINS
}

static BUILTINS: [Builtin; 7] = [
    Builtin {
        name: "io",
        about: "forwards packets as they came",
        syntax: "",
        example: "io",
        settings: none,
        report: |_, _| FunctionReport::default(),
    },
    Builtin {
        name: "macswap",
        about: "swaps source and destination MAC address",
        syntax: "",
        example: "macswap",
        settings: none,
        report: |_, _| FunctionReport::default(),
    },
    Builtin {
        name: "l3-decrement",
        about: "one hop of a router: IPv4 time to live with checksum, IPv6 hop limit; drops what expires",
        syntax: "",
        example: "l3-decrement",
        settings: none,
        report: |state, _| {
            FunctionReport::from_numbers(
                state,
                0,
                &["decremented_packets", "expired_packets", "other_packets"],
            )
        },
    },
    Builtin {
        name: "flow-count",
        about: "counts packets and bytes by addresses, protocol and ports",
        syntax: "",
        example: "flow-count",
        settings: none,
        report: flows::report,
    },
    Builtin {
        name: "drop-rule",
        about: "drops, or sends to a port, what the first matching rule says",
        syntax: "RULE[,RULE...], each udp|tcp|sctp[:[from:]PORT[-PORT]]|icmp|icmp6|ip|ip6|arp|all|proto:N|type:N|src:NET|dst:NET, \
                 then @PORT to send it there",
        example: "drop-rule:udp:53,src:10.0.0.0/8@1",
        settings: rules::settings,
        report: rules::report,
    },
    Builtin {
        name: "checksum",
        about: "drops packets with a wrong IPv4, TCP, UDP or ICMP checksum",
        syntax: "",
        example: "checksum",
        settings: none,
        report: |state, _| {
            FunctionReport::from_numbers(state, 0, &["right_packets", "wrong_packets", "unchecked_packets"])
        },
    },
    Builtin {
        name: "oran-reorder",
        about: "assembles O-RAN U-plane packets, in any order, into contiguous symbol buffers",
        syntax: "eaxc=ID+ID...,prbs=N,scs=15|30|60|120,iq=BITS|bfpBITS,header,windows=N,limit=TIME,pass",
        example: "oran-reorder:eaxc=0+1,prbs=106,iq=bfp9",
        settings: oran::settings,
        report: oran::report,
    },
];

fn none(settings: &str) -> Result<Vec<u8>, String> {
    if settings.is_empty() {
        Ok(Vec::new())
    } else {
        Err("it has no settings; leave out what follows its name".into())
    }
}

pub(crate) fn find(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|builtin| builtin.name == name)
}

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    BUILTINS.iter().map(|builtin| builtin.name)
}

impl Builtin {
    pub(crate) fn built(&self) -> &'static Built {
        let symbol = self.name.replace('-', "_");
        BUILT.iter().find(|built| built.symbol == symbol).expect("every name has its source; tested")
    }

    /// The code for the CPU that this runs on.
    pub(crate) fn entry(&self) -> *const FunctionEntry {
        let built = self.built();
        if has_avx2() { built.avx2 } else { built.any }
    }
}

/// True when this CPU has what `-march=x86-64-v3` uses.
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx2")
        && has!("bmi1")
        && has!("bmi2")
        && has!("f16c")
        && has!("fma")
        && has!("lzcnt")
        && has!("movbe")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::ring::layout::{Descriptor, PacketVerdict};

    #[test]
    fn every_name_has_its_source_and_every_source_its_name() {
        for builtin in builtins() {
            builtin.built();
            crate::PacketFunction::parse(builtin.example).expect(builtin.example);
        }
        assert_eq!(BUILTINS.len(), BUILT.len());
    }

    /// Both builds of every function do the same; otherwise only one would be tested on any machine.
    #[test]
    fn both_builds_agree() {
        if !has_avx2() {
            eprintln!("SKIPPED both_builds_agree: no AVX2");
            return;
        }
        let mut seed = 1u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) as u8
        };
        // IPv4 and UDP, with noise behind and in some of the fields.
        let frame = |random: &mut dyn FnMut() -> u8| {
            let mut frame: Vec<u8> = (0..12 + random() as usize % 90).map(|_| random()).collect();
            for (at, byte) in
                [(12, 8), (13, 0), (14, 0x45), (16, 0), (20, 0), (21, 0), (23, 17), (36, 0), (37, 53)]
            {
                if let Some(place) = frame.get_mut(at).filter(|_| random() >= 32) {
                    *place = byte;
                }
            }
            frame
        };
        for builtin in builtins() {
            let function = crate::PacketFunction::parse(builtin.example).expect(builtin.example);
            let built = builtin.built();
            let mut instances = [built.any, built.avx2]
                .map(|entry| crate::Instance::new(function.clone(), entry).expect("memory"));
            for _ in 0..200 {
                let frames: Vec<Vec<u8>> = (0..random() % 40).map(|_| frame(&mut random)).collect();
                let runs = instances.each_mut().map(|instance| {
                    let mut frames = frames.clone();
                    let packets: Vec<Descriptor> = frames
                        .iter_mut()
                        .map(|frame| Descriptor {
                            address: frame.as_mut_ptr() as u64,
                            length: frame.len() as u32,
                            lap: 0,
                        })
                        .collect();
                    let mut outcomes = vec![PacketVerdict::default(); frames.len()];
                    // SAFETY: the frames are here, and nobody else has them.
                    let info = unsafe { instance.run_descriptors(&packets, &mut outcomes, 1) };
                    (frames, outcomes, info)
                });
                assert!(runs[0] == runs[1], "{}", builtin.name);
            }
            let [any, avx2] = &instances;
            assert!(any.state() == avx2.state(), "{}: another state", builtin.name);
        }
    }
}
