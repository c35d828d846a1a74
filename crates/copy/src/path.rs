//! The kinds of paths there are between two endpoints.

use crate::endpoint::Endpoint;
use inlane_core::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// A kind of path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// The CPU copies between mapped memories.
    Bar,
    /// One DMA engine moves the bytes: a device's, or a GPU's copy engine.
    Dma,
    /// A GPU's SMs push to or pull from pinned host memory.
    Sm,
    /// DMA out to a host buffer, CPU copy to another, DMA in; one after the other, as published.
    Hybrid,
    /// DMA out and in at once, through a ring of pinned chunks.
    Staged,
    /// As staged, with SMs at both ends that hand chunks over by flags; no CPU in the loop.
    StagedSm,
    /// Directly from device to device, over NVLink or PCIe.
    P2p,
    /// The CUDA driver's own copy between two GPUs that have no peer access: here to compare with.
    Cuda,
}

impl Path {
    /// All of them.
    pub const ALL: [Path; 8] =
        [Path::Bar, Path::Dma, Path::Sm, Path::Hybrid, Path::Staged, Path::StagedSm, Path::P2p, Path::Cuda];

    /// Those that can exist between two kinds of endpoints. Whether the machine has one is found out by opening it.
    pub fn candidates(from: &Endpoint, to: &Endpoint) -> Vec<Path> {
        use Endpoint::{Bar, Gpu, Host, Twin};
        match (from, to) {
            (Host, Host) => vec![Path::Bar, Path::Dma],
            (Gpu(a), Gpu(b)) if a == b => vec![Path::Dma, Path::Staged, Path::StagedSm, Path::Hybrid],
            (Gpu(_), Gpu(_)) => vec![Path::P2p, Path::StagedSm, Path::Staged, Path::Cuda, Path::Hybrid],
            (Host, Gpu(_)) | (Gpu(_), Host) => vec![Path::Dma, Path::Sm],
            (Host, Twin(_)) | (Twin(_), Host) => vec![Path::Dma, Path::Bar],
            (Twin(_), Twin(_)) => vec![Path::Staged, Path::Hybrid, Path::Bar],
            (Host, Bar(_)) | (Bar(_), Host) | (Bar(_), Bar(_)) => vec![Path::Bar],
            (Gpu(_) | Twin(_) | Bar(_), _) => vec![Path::Staged, Path::Hybrid],
        }
    }

    /// Why it cannot exist between these two, when it is no candidate.
    pub fn why_not(self, from: &Endpoint, to: &Endpoint) -> &'static str {
        let gpus = matches!((from, to), (Endpoint::Gpu(a), Endpoint::Gpu(b)) if a != b);
        match self {
            Path::P2p | Path::Cuda if !gpus => "needs two GPUs",
            Path::StagedSm => "needs GPUs at both ends",
            Path::Sm => "needs a GPU at one end and host memory at the other",
            Path::Dma => "no DMA engine reaches both ends",
            Path::Bar if matches!(from, Endpoint::Gpu(_)) || matches!(to, Endpoint::Gpu(_)) => {
                "GPU memory is not mapped to the CPU: GDRCopy is not supported yet"
            }
            Path::Hybrid | Path::Staged => "one leg reaches both ends: there is nothing to stage",
            _ => "not between these two",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Bar => "bar",
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
        Path::ALL.into_iter().find(|path| path.to_string() == text).ok_or_else(|| {
            let all = Path::ALL.map(|path| path.to_string()).join(", ");
            Error::invalid(format!("path '{text}'"), format!("choose {all}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_a_path_and_every_other_a_reason() {
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
        assert!("nvlink".parse::<Path>().unwrap_err().to_string().contains("staged-sm"));
    }
}
