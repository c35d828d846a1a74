//! The methods of control flow.

use crate::error::{Error, Result};
use crate::field;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// How control flows between a pipeline's threads and the device that runs the packet function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// One thread receives, runs the packet function, and sends. On a GPU the thread launches a kernel for
    /// each burst and waits for the kernel.
    #[default]
    Single,
    /// One thread receives and sends. On the CPU, workers run the packet function. On a GPU, a feeder
    /// launches a kernel for each burst.
    Split,
    /// GPU only: a resident kernel polls the burst ring for items.
    Persistent,
    /// GPU only: a feeder posts wait-value operations and kernels in streams. It posts them before the items
    /// are submitted.
    Stream,
    /// GPU only: like [`Method::Stream`], but one CUDA graph posts the waits and kernels of several items.
    Graph,
}

impl Method {
    /// Every method. A GPU supports all of them.
    pub const ALL: [Method; 5] =
        [Method::Single, Method::Split, Method::Persistent, Method::Stream, Method::Graph];

    /// Returns true if the method also works without a GPU.
    pub fn is_cpu(&self) -> bool {
        matches!(self, Method::Single | Method::Split)
    }

    /// Returns true if a GPU pipeline with this method has a feeder thread.
    pub(crate) fn has_feeder(&self) -> bool {
        matches!(self, Method::Split | Method::Stream | Method::Graph)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Single => "single",
            Method::Split => "split",
            Method::Persistent => "persistent",
            Method::Stream => "stream",
            Method::Graph => "graph",
        })
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|method| method.to_string() == text).ok_or_else(|| {
            Error::config(
                field::METHOD.with(text),
                "choose one of single, split; on a GPU also persistent, stream, graph",
            )
        })
    }
}
