//! The kinds of paths, and which kinds can exist between two endpoints.

use crate::endpoint::Endpoint;
use inlane_core::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A kind of path: which movers copy from the source to the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// The CPU loads and stores mapped memory. Older results and commands call this path `bar`.
    #[serde(alias = "bar")]
    Cpu,
    /// One DMA engine, such as a GPU's copy engine.
    Dma,
    /// A GPU's SMs copy to or from pinned host memory.
    Sm,
    /// Three steps, one after the other: DMA to a host buffer, a CPU copy to another host buffer, and DMA to
    /// the destination. The published experiment ([`crate::published`]) uses this path.
    Hybrid,
    /// DMA out and DMA in at the same time, through a ring of chunks in host memory.
    Staged,
    /// Like `staged`, but the SMs of both GPUs copy the chunks. The SMs signal each other without the CPU.
    StagedSm,
    /// Directly from GPU to GPU, over NVLink or PCIe.
    P2p,
    /// The CUDA driver's own copy between two GPUs without peer access, for comparison.
    Cuda,
}

impl Path {
    /// All paths.
    pub const ALL: [Path; 8] =
        [Path::Cpu, Path::Dma, Path::Sm, Path::Hybrid, Path::Staged, Path::StagedSm, Path::P2p, Path::Cuda];

    /// Returns the paths that can exist between two endpoints. Opening a path shows whether the machine has
    /// it.
    pub fn candidates(from: &Endpoint, to: &Endpoint) -> Vec<Path> {
        use Endpoint::{Bar, Gpu, Host, Twin};
        match (from, to) {
            (Host, Host) => vec![Path::Cpu, Path::Dma],
            (Gpu(a), Gpu(b)) if a == b => vec![Path::Dma, Path::Staged, Path::StagedSm, Path::Hybrid],
            (Gpu(_), Gpu(_)) => vec![Path::P2p, Path::StagedSm, Path::Staged, Path::Cuda, Path::Hybrid],
            (Host, Gpu(_)) | (Gpu(_), Host) => vec![Path::Dma, Path::Sm],
            (Host, Twin(_)) | (Twin(_), Host) => vec![Path::Dma, Path::Cpu],
            (Twin(_), Twin(_)) => vec![Path::Staged, Path::Hybrid, Path::Cpu],
            (Host, Bar(_)) | (Bar(_), Host) | (Bar(_), Bar(_)) => vec![Path::Cpu],
            (Gpu(_) | Twin(_) | Bar(_), _) => vec![Path::Staged, Path::Hybrid],
        }
    }

    /// Returns the reason why this path cannot exist between two endpoints. Call it only for paths that are
    /// not in the result of [`Path::candidates`].
    pub fn why_not(self, from: &Endpoint, to: &Endpoint) -> &'static str {
        let gpus = matches!((from, to), (Endpoint::Gpu(a), Endpoint::Gpu(b)) if a != b);
        match self {
            Path::P2p | Path::Cuda if !gpus => "needs two GPUs",
            Path::StagedSm => "needs GPUs at both ends",
            Path::Sm => "needs a GPU at one end and host memory at the other",
            Path::Dma => "no DMA engine reaches both ends",
            Path::Cpu if matches!(from, Endpoint::Gpu(_)) || matches!(to, Endpoint::Gpu(_)) => {
                "the CPU cannot map GPU memory; GDRCopy is not supported"
            }
            Path::Hybrid | Path::Staged => "one mover reaches both ends, so nothing is staged",
            _ => "does not exist between these endpoints",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Cpu => "cpu",
            Path::Dma => "dma",
            Path::Sm => "sm",
            Path::Hybrid => "hybrid",
            Path::Staged => "staged",
            Path::StagedSm => "staged-sm",
            Path::P2p => "p2p",
            Path::Cuda => "cuda",
        })
    }
}

impl FromStr for Path {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = if text == "bar" { "cpu" } else { text };
        Path::ALL.into_iter().find(|path| path.to_string() == text).ok_or_else(|| {
            let all = Path::ALL.map(|path| path.to_string()).join(", ");
            Error::invalid(format!("path '{text}'"), format!("choose one of {all}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_a_path_and_a_reason_against_the_others() {
        let ends: Vec<Endpoint> = ["host", "gpu:0", "gpu:1", "twin:0", "twin:1", "pci:0000:00:04.0/bar2"]
            .map(|text| text.parse().unwrap())
            .into();
        for from in &ends {
            for to in &ends {
                let candidates = Path::candidates(from, to);
                assert!(!candidates.is_empty(), "{from} {to}");
                for path in Path::ALL.into_iter().filter(|path| !candidates.contains(path)) {
                    assert!(!path.why_not(from, to).is_empty());
                }
            }
        }
        assert_eq!("bar".parse::<Path>().unwrap(), Path::Cpu);
        assert_eq!(serde_json::from_str::<Path>("\"bar\"").unwrap(), Path::Cpu);
        assert!("nvlink".parse::<Path>().unwrap_err().to_string().contains("staged-sm"));
    }
}
