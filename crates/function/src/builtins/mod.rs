//! The built-in packet functions. For each function: what it does, its settings and its report. build.rs
//! compiles the sources in `functions/` into this crate.

mod flows;
mod oran;
mod rules;

pub use flows::{Flow, flows};
pub use oran::{DeliveryReason, OranSlot, oran_slot};

use crate::abi::FunctionEntry;
use crate::report::FunctionReport;
use crate::source::FunctionSource;

/// A built-in function's code, as build.rs compiled it.
pub(crate) struct Built {
    /// The name of the function's C++ struct in the source.
    pub symbol: &'static str,
    /// The source file's name.
    pub file: &'static str,
    /// The source.
    pub source: &'static str,
    any: *const FunctionEntry,
    avx2: *const FunctionEntry,
}

// SAFETY: the pointers are to constants of this program.
unsafe impl Sync for Built {}

include!(concat!(env!("OUT_DIR"), "/builtins.rs"));

/// A packet function that is built into inlane.
pub struct Builtin {
    /// The name on the command line.
    pub name: &'static str,
    /// A description of the function in one line.
    pub about: &'static str,
    /// The syntax of the function's settings. On the command line they follow the function's name and a
    /// colon. Empty if the function has no settings.
    pub syntax: &'static str,
    /// An example for the command line.
    pub example: &'static str,
    /// Converts the text of the settings to the first bytes of the function's state.
    pub(crate) settings: fn(&str) -> Result<Vec<u8>, String>,
    /// Makes the report from the state after a run and the text of the settings.
    pub(crate) report: fn(&[u8], &str) -> FunctionReport,
    /// Returns C++ assertions for the layout of the function's state. Empty if no Rust code accesses it.
    pub(crate) layout: fn() -> String,
}

/// Returns the built-in functions, in the order in which lists show them.
pub fn builtins() -> &'static [Builtin] {
    &BUILTINS
}

static BUILTINS: [Builtin; 7] = [
    Builtin {
        name: "io",
        about: "forwards packets unchanged",
        syntax: "",
        example: "io",
        settings: none,
        report: |_, _| FunctionReport::default(),
        layout: String::new,
    },
    Builtin {
        name: "macswap",
        about: "swaps the source and destination MAC addresses",
        syntax: "",
        example: "macswap",
        settings: none,
        report: |_, _| FunctionReport::default(),
        layout: String::new,
    },
    Builtin {
        name: "l3-decrement",
        about: "acts as a router's hop: decrements TTL (with checksum) or hop limit, drops expired packets, leaves neighbour discovery alone",
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
        layout: || counters_layout("l3_decrement", &["decremented", "expired", "others"]),
    },
    Builtin {
        name: "flow-count",
        about: "counts packets and bytes per flow (addresses, protocol, ports)",
        syntax: "",
        example: "flow-count",
        settings: none,
        report: flows::report,
        layout: flows::layout,
    },
    Builtin {
        name: "drop-rule",
        about: "drops matching packets or sends them to a port; the first matching rule decides",
        syntax: "RULE[,RULE...], each udp|tcp|sctp[:[from:]PORT[-PORT]]|icmp|icmp6|ip|ip6|arp|all|proto:N|type:N|src:NET|dst:NET, \
                 optionally followed by @PORT",
        example: "drop-rule:udp:53,src:10.0.0.0/8@1",
        settings: rules::settings,
        report: rules::report,
        layout: rules::layout,
    },
    Builtin {
        name: "checksum",
        about: "drops packets with a wrong IPv4, TCP, UDP, ICMP or ICMPv6 checksum",
        syntax: "",
        example: "checksum",
        settings: none,
        report: |state, _| {
            FunctionReport::from_numbers(state, 0, &["right_packets", "wrong_packets", "unchecked_packets"])
        },
        layout: || counters_layout("checksum", &["right", "wrong", "unchecked"]),
    },
    Builtin {
        name: "oran-reorder",
        about: "assembles O-RAN U-plane packets, arriving in any order, into contiguous symbol buffers",
        syntax: "eaxc=ID+ID...,prbs=N,scs=15|30|60|120,iq=BITS|bfpBITS,header,windows=N,limit=TIME,pass",
        example: "oran-reorder:eaxc=0+1,prbs=106,iq=bfp9",
        settings: oran::settings,
        report: oran::report,
        layout: oran::layout,
    },
];

/// Reads the settings of a function that accepts none: refuses any text but the empty one.
fn none(settings: &str) -> Result<Vec<u8>, String> {
    if settings.is_empty() {
        Ok(Vec::new())
    } else {
        Err(format!("'{settings}': this function has no settings; leave out the colon and what follows it"))
    }
}

/// Returns C++ assertions that the struct `c_struct`, a function's state, begins with these 64-bit counters.
fn counters_layout(c_struct: &str, counters: &[&str]) -> String {
    let assertion = |(i, counter): (usize, &&str)| {
        format!(
            "static_assert(INLANE_OFFSETOF({c_struct}, {counter}) == {} && sizeof({c_struct}::{counter}) == 8, \
             \"Rust's {c_struct}.{counter}\");\n",
            8 * i
        )
    };
    counters.iter().enumerate().map(assertion).collect()
}

/// Finds a built-in function by its name.
pub(crate) fn find(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|builtin| builtin.name == name)
}

/// Returns the names of all built-in functions.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    BUILTINS.iter().map(|builtin| builtin.name)
}

impl Builtin {
    /// Returns the function's compiled code.
    pub(crate) fn built(&self) -> &'static Built {
        let symbol = self.name.replace('-', "_");
        BUILT.iter().find(|built| built.symbol == symbol).expect("a test shows that every name has a source")
    }

    /// Returns the function's source.
    pub(crate) fn source(&self) -> FunctionSource<'static> {
        let Built { symbol, file, source, .. } = *self.built();
        FunctionSource { file, text: source, symbol, layout: self.layout }
    }

    /// Returns the function's code for this CPU: the AVX2 build if the CPU supports it.
    pub(crate) fn entry(&self) -> *const FunctionEntry {
        let built = self.built();
        if has_avx2() { built.avx2 } else { built.any }
    }
}

/// Returns true if this CPU has the instructions that `-march=x86-64-v3` uses.
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

    /// Compiles each function's source with assertions that C++ and Rust lay out the shared fields alike.
    #[test]
    fn rust_and_cpp_lay_out_shared_structs_alike() {
        use std::io::Write;
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
        let compile = |text: &str| {
            let mut child = std::process::Command::new("c++")
                .args(["-std=c++17", "-fsyntax-only", "-Wall", "-Werror", "-I", include, "-xc++", "-"])
                .stdin(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .expect("the compiler that built this crate");
            child
                .stdin
                .take()
                .expect("piped")
                .write_all(text.as_bytes())
                .expect("the compiler reads its input");
            child.wait_with_output().expect("the compiler ends")
        };
        for builtin in builtins() {
            let FunctionSource { text: source, .. } = builtin.source();
            let layout = builtin.source().layout_assertions();
            let output = compile(&format!("{source}\n{layout}"));
            assert!(output.status.success(), "{}: {}", builtin.name, String::from_utf8_lossy(&output.stderr));
            // With a wrong size for the first field, the assertions must not compile.
            let wrong = layout.replacen("sizeof(inlane_info::abi) == 4", "sizeof(inlane_info::abi) == 8", 1);
            assert_ne!(wrong, layout);
            assert!(!compile(&format!("{source}\n{wrong}")).status.success(), "a wrong layout compiled");
        }
    }

    #[test]
    fn every_name_has_a_source_and_every_source_a_name() {
        for builtin in builtins() {
            builtin.built();
            crate::PacketFunction::parse(builtin.example).expect(builtin.example);
        }
        assert_eq!(BUILTINS.len(), BUILT.len());
    }

    /// Runs both builds on the same frames: with and without AVX2. Other tests run only the build that the
    /// machine selects.
    #[test]
    fn both_builds_give_the_same_results() {
        if !has_avx2() {
            eprintln!("SKIPPED both_builds_give_the_same_results: this CPU has no AVX2");
            return;
        }
        let mut seed = 1u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) as u8
        };
        // Makes a random frame. Most frames get the fixed fields of Ethernet, IPv4 and UDP to port 53.
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
            let mut instances = [built.any, built.avx2].map(|entry| {
                crate::Instance::new(function.clone(), crate::packet_function::Processor::Compiled(entry))
                    .expect("memory")
            });
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
                    // SAFETY: this closure owns the frames, and nothing else uses them.
                    let info = unsafe { instance.run_descriptors(&packets, &mut outcomes, 1) };
                    (frames, outcomes, info)
                });
                assert!(runs[0] == runs[1], "{}", builtin.name);
            }
            let [any, avx2] = &instances;
            assert!(any.state() == avx2.state(), "{}: the states differ", builtin.name);
        }
    }
}
