//! Tests the command in builds without the cargo features `cuda` and `dpdk`. Runs that need no device must
//! work. Other runs must fail with a message that names the missing feature.

use std::process::{Command, Output, Stdio};

fn inlane(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
    command.args(line.split_whitespace()).env("INLANE_CACHE", "").stdin(Stdio::null());
    command.output().expect("the binary runs")
}

#[cfg(not(all(feature = "cuda", feature = "dpdk")))]
fn is_refused(line: &str, feature: &str) {
    let output = inlane(line);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{line}: {said}");
    assert!(
        said.contains(&format!("cargo feature {feature}; build it with --features {feature}")),
        "{line}: {said}"
    );
}

#[test]
fn parts_without_devices_work() {
    for line in [
        "forward --rx gen:64,flows=4 --tx check --function macswap --packets 1000 --no-baseline",
        "copy --from host --to twin:0 --sizes 4K --duration 1ms --repeats 1",
        "ntb bench --sizes 8 --duration 1ms --repeats 1 --only puts",
        "doctor dpdk gpu nvrtc",
    ] {
        let output = inlane(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn what_needs_dpdk_names_the_feature() {
    is_refused("forward --rx net_null:64 --tx null --packets 1", "dpdk");
    is_refused("forward --between af_packet:lo af_xdp:lo", "dpdk");
    is_refused("copy --from host --to host --require dma", "dpdk");
}

#[cfg(not(feature = "cuda"))]
#[test]
fn what_needs_a_gpu_names_the_feature() {
    is_refused("forward --rx null:64 --tx null --on gpu:0 --packets 1", "cuda");
    is_refused("copy --from gpu:0 --to host", "cuda");
    is_refused("ntb bench --mover gpu:0 --only mover --sizes 64K", "cuda");
}
