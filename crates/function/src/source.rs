//! The C++ source of a packet function, and the texts that compilers get:
//!
//! ```text
//! inlane.h | the function's source, with its own file name and lines | assertions about shared structs
//!                                                          for GPUs also: | inlane_run_item, inlane_run_tick | the executor's kernels
//! ```

/// The C++ source of a packet function.
#[derive(Clone, Copy)]
pub struct FunctionSource<'a> {
    /// The name of the file. Compilers show it in their messages.
    pub file: &'a str,
    /// The text.
    pub text: &'a str,
    /// The name of the function's C++ struct, SYMBOL. A compiled module exports `inlane_info_SYMBOL`.
    pub symbol: &'a str,
    /// Returns C++ assertions about the layout of the function's state.
    pub(crate) layout: fn() -> String,
}

impl FunctionSource<'_> {
    /// Returns C++ text that asserts the layout of every struct that Rust shares with this function's code.
    pub(crate) fn layout_assertions(&self) -> String {
        crate::abi::layout_assertions() + &(self.layout)()
    }

    /// Returns a translation unit for a C++17 compiler with [`crate::HEADERS`].
    pub(crate) fn unit(&self) -> String {
        format!(
            "#include <inlane.h>\n#line 1 \"{}\"\n{}\n#line 1 \"inlane layout\"\n{}",
            escaped(self.file),
            self.text,
            self.layout_assertions()
        )
    }

    /// Returns the beginning of a translation unit for NVRTC (C++17, with [`crate::HEADERS`]), to which the
    /// executor appends its kernels.
    ///
    /// All threads of a block, a multiple of 32, call these functions together:
    ///
    /// ```text
    /// uint32_t inlane_run_item(const inlane_descriptor *, uint32_t count, inlane_packet_verdict *, const inlane_context &);
    /// void inlane_run_tick(const inlane_context &);
    /// constexpr bool inlane_needs_time; // false: `now_ns` may be 0
    /// ```
    ///
    /// `inlane_run_item` returns `INLANE_UNCHANGED` or `INLANE_VERDICTS` to all threads. `inlane_run.h`
    /// describes the barriers that it needs. The module's global `inlane_info_SYMBOL` is a
    /// [`FunctionInfo`](crate::FunctionInfo).
    pub fn for_gpu(&self) -> String {
        format!(
            r#"{unit}
#line 1 "executor"
static __device__ __forceinline__ uint32_t inlane_run_item(const inlane_descriptor *packets, uint32_t count,
                                                           inlane_packet_verdict *verdicts, const inlane_context &context) {{
    return inlane::run_item<inlane_registered_{symbol}>(packets, sizeof(inlane_descriptor), count, verdicts, context);
}}
static __device__ __forceinline__ void inlane_run_tick(const inlane_context &context) {{
    inlane::run_tick<inlane_registered_{symbol}>(context);
}}
static constexpr bool inlane_needs_time = inlane::detail::info_of<inlane_registered_{symbol}>().time != 0;
"#,
            unit = self.unit(),
            symbol = self.symbol,
        )
    }
}

/// Escapes a file name for a C++ string literal.
fn escaped(file: &str) -> String {
    file.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ")
}
