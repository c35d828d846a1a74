//! What a GPU executor compiles: a function's source between the header and the two calls that kernels make.
//!
//! ```text
//! inlane.h | the function's source, under its own file name and lines | inlane_run_item, inlane_run_tick | kernels
//! ```

use crate::packet_function::PacketFunction;

impl PacketFunction {
    /// The beginning of a translation unit for NVRTC (C++17, with [`crate::HEADERS`]), to which an executor adds its
    /// kernels. It defines, for them to call with all threads of a block (a multiple of 32):
    ///
    /// ```text
    /// uint32_t inlane_run_item(const inlane_descriptor *, uint32_t count, inlane_packet_verdict *, const inlane_context &);
    /// void inlane_run_tick(const inlane_context &);
    /// constexpr bool inlane_needs_time; // false: `now_ns` may be 0
    /// ```
    ///
    /// `inlane_run_item` returns `INLANE_UNCHANGED` or `INLANE_VERDICTS`, the same to all threads; see `inlane_run.h` for
    /// the barriers around it. The module's global `inlane_info_SYMBOL` is an [`FunctionInfo`](crate::FunctionInfo).
    pub fn gpu_source(&self) -> String {
        format!(
            r#"#include <inlane.h>
#line 1 "{file}"
{source}
#line 1 "executor"
static __device__ __forceinline__ uint32_t inlane_run_item(const inlane_descriptor *packets, uint32_t count,
                                                           inlane_packet_verdict *outcomes, const inlane_context &context) {{
    return inlane::run_item<inlane_registered_{symbol}>(packets, sizeof(inlane_descriptor), count, outcomes, context);
}}
static __device__ __forceinline__ void inlane_run_tick(const inlane_context &context) {{
    inlane::run_tick<inlane_registered_{symbol}>(context);
}}
static constexpr bool inlane_needs_time = inlane::detail::info_of<inlane_registered_{symbol}>().time != 0;
"#,
            file = escaped(self.file()),
            source = self.source(),
            symbol = self.symbol(),
        )
    }
}

/// A file's name inside a string literal of C++.
pub(crate) fn escaped(file: &str) -> String {
    file.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ")
}
