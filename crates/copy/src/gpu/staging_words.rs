//! The words that the host shares with the staging kernels. `staging.h` declares the same words. The
//! compilers check that both declarations agree: see [`layout_assertions`].

use crate::tuning::LINES;

/// The number of timestamps that pusher and puller each record in a channel.
const MARKS: usize = 6;
/// The value of a command's length field that makes the kernels leave.
pub(super) const LEAVE: u64 = u64::MAX;

/// The words that all channels share, in the layout of `Control` in `staging.h`.
#[repr(C)]
pub(super) struct Control {
    pub failed: u64,
    pad0: [u64; 15],
    pub leave: u64,
    pad1: [u64; 15],
}

/// The words of one channel, in the layout of `Channel` in `staging.h`.
#[repr(C)]
pub(super) struct Channel {
    ready: u64,
    pub seen: u64,
    pub pushed: [u64; MARKS],
    pad0: [u64; 8],
    taken: u64,
    pad1: u64,
    pub pulled: [u64; MARKS],
    pad2: [u64; 8],
}

/// Returns C++ assertions that compare the structs and values of `staging.h` with those of this module.
/// Append the text to the kernels' source.
pub(super) fn layout_assertions() -> String {
    let control = inlane_core::struct_layout!(Control as "Control" { failed, pad0, leave, pad1 });
    let channel = inlane_core::struct_layout!(Channel as "Channel" {
        ready, seen, pushed, pad0, taken, pad1, pulled, pad2
    });
    let values = format!(
        "static_assert(LEAVE == {LEAVE}ull && LINES == {LINES}ull && MARKS == {MARKS}, \"Rust's values\");\n"
    );
    [inlane_core::layout::OFFSETOF, &control, &channel, &values].concat()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// Checks with the C++ compiler that the structs of `staging.h` have the same layout as this module's
    /// structs. The module `kernels` makes the same check with NVRTC.
    #[test]
    fn the_header_has_the_same_layout() {
        let source = |assertions: &str| format!("{}{assertions}", include_str!("staging.h"));
        let compiles = |source: String| {
            let mut compiler = Command::new("c++")
                .args(["-std=c++17", "-fsyntax-only", "-x", "c++", "-"])
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the build of this project needs a C++ compiler");
            compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
            let output = compiler.wait_with_output().unwrap();
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let assertions = super::layout_assertions();
        let (right, said) = compiles(source(&assertions));
        assert!(right, "{said}");
        let moved = assertions.replace("Channel, taken) == 128", "Channel, taken) == 136");
        assert_ne!(moved, assertions);
        assert!(!compiles(source(&moved)).0, "a wrong offset is detected");
    }
}
