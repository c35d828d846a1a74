//! The text that a GPU executor compiles:
//!
//! ```text
//! inlane.h | the function's source, with its own file name and lines | inlane_run_item, inlane_run_tick | the executor's kernels
//! ```

use crate::packet_function::PacketFunction;

impl PacketFunction {
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
    pub fn gpu_source(&self) -> String {
        format!(
            r#"#include <inlane.h>
#line 1 "{file}"
{source}
#line 1 "inlane layout"
{layout}
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
            file = escaped(self.file()),
            source = self.source(),
            layout = self.layout_assertions(),
            symbol = self.symbol(),
        )
    }
}

/// Escapes a file name for a C++ string literal.
pub(crate) fn escaped(file: &str) -> String {
    file.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ")
}
