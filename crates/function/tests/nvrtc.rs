//! Compiles every packet function for GPUs, from the same source as for the CPU. Needs NVRTC, but no GPU.

use inlane_cuda::{Error, Source, compile, compiler_version};
use inlane_function::{HEADERS, PacketFunction, builtins};

/// Kernels of the kind that a GPU executor appends to the source of a packet function.
const KERNELS: &str = r#"
extern "C" __global__ void item(const inlane_descriptor *packets, uint32_t count, inlane_packet_verdict *verdicts,
                                inlane_context context, uint32_t *info) {
    uint32_t what = inlane_run_item(packets, count, verdicts, context);
    __syncthreads();
    if (threadIdx.x == 0) *info = what;
}
extern "C" __global__ void tick(inlane_context context) { inlane_run_tick(context); }
"#;

const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

fn compiler_is_here(test: &str) -> bool {
    match compiler_version() {
        Ok(_) => true,
        Err(why) => {
            eprintln!("SKIPPED {test}: {why}");
            false
        }
    }
}

fn contains(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle.as_bytes())
}

#[test]
fn every_function_compiles_for_gpus() {
    if !compiler_is_here("every_function_compiles_for_gpus") {
        return;
    }
    let examples = ["truncate.cu", "vxlan.cu", "sizes.cu", "vlan.cu:push_vlan", "vlan.cu:pop_vlan"]
        .map(|name| format!("{}/../../examples/functions/{name}", env!("CARGO_MANIFEST_DIR")));
    for text in builtins().iter().map(|builtin| builtin.example).chain(examples.iter().map(String::as_str)) {
        let function = PacketFunction::parse(text).expect(text);
        let unit = function.source().expect("C++");
        for arch in ARCHITECTURES {
            let source = unit.for_gpu() + KERNELS;
            let program = Source { name: unit.file, source: &source, headers: &HEADERS, options: &[] };
            let compiled = compile(&program, arch).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(compiled.log(), "", "{text} for {arch}: warnings");
            for symbol in ["item", "tick", &format!("inlane_info_{}", unit.symbol)] {
                assert!(contains(compiled.machine_code(), symbol), "{text}: no {symbol} for {arch}");
            }
            for counter in function.declared_counters() {
                let symbol = format!("inlane_counter_{}_{counter}", unit.symbol);
                assert!(contains(compiled.machine_code(), &symbol), "{text}: no {symbol} for {arch}");
            }
        }
    }
}

#[test]
fn messages_point_at_the_users_lines() {
    if !compiler_is_here("messages_point_at_the_users_lines") {
        return;
    }
    let function = PacketFunction::parse("io").expect("io");
    let source =
        function.source().expect("C++").for_gpu().replace("return inlane::forward;", "return nonsense;");
    let program = Source { name: "unit.cu", source: &source, headers: &HEADERS, options: &[] };
    let Err(Error::DoesNotCompile { log, .. }) = compile(&program, "sm_90") else { panic!("it compiled") };
    assert!(log.contains("io.cu(7)") && log.contains("nonsense"), "{log}");
}

#[test]
fn the_kernels_of_the_examples_compile() {
    if !compiler_is_here("the_kernels_of_the_examples_compile") {
        return;
    }
    let kernels = [
        ("oran_power", include_str!("../../../examples/functions/oran_power.cu")),
        ("add_up", include_str!("../../../examples/own-kernel/kernel.cu")),
    ];
    for (name, source) in kernels {
        let program = Source { name, source, headers: &HEADERS, options: &["-default-device"] };
        for arch in ARCHITECTURES {
            let compiled = compile(&program, arch).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(compiled.log(), "", "{name} for {arch}: warnings");
            assert!(contains(compiled.machine_code(), name));
        }
    }
}
