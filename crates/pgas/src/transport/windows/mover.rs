//! Parses the user's choice of a mover (`twin`, `twin:RATE` or `gpu:N`). If the mover is a twin, starts it.

use crate::error::{Error, Result};
use crate::field::MOVER;
use inlane_core::mover::Mover;
use inlane_twin::{DmaCosts, DmaEngine};

/// The mover for bulk data as a user names it: `twin`, `twin:RATE` or `gpu:N`.
///
/// A GPU can copy only memory that was registered with it. Programs put from any of their memory, so they
/// cannot use a GPU. The bench can, because it registers its memory.
#[derive(Clone, Debug, PartialEq)]
pub enum MoverChoice {
    /// A DMA engine's twin with this rate in bits per second. `None`: as fast as a core copies.
    Twin(Option<f64>),
    /// The copy engines of a GPU.
    Gpu(u32),
}

impl std::str::FromStr for MoverChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        use inlane_core::units::{Rate, parse_rate};
        let invalid = || {
            let why = "give twin, twin:RATE in bits per second (for example twin:30G), or gpu:N";
            Error::invalid(MOVER.with(text), why)
        };
        match text.split_once(':').unwrap_or((text, "")) {
            ("twin", "") => Ok(Self::Twin(None)),
            ("twin", rate) => match parse_rate(rate) {
                Ok(Rate::Bits(bits)) => Ok(Self::Twin(Some(bits))),
                _ => Err(invalid()),
            },
            ("gpu", number) => number.parse().map(Self::Gpu).map_err(|_| invalid()),
            _ => Err(invalid()),
        }
    }
}

impl std::fmt::Display for MoverChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Twin(None) => f.write_str("twin"),
            Self::Twin(Some(bits)) => write!(f, "twin:{bits}"),
            Self::Gpu(number) => write!(f, "gpu:{number}"),
        }
    }
}

impl MoverChoice {
    /// Starts the twin of a DMA engine.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this mover is a GPU, because a GPU does not reach all memory of a program.
    pub fn start_twin(&self) -> Result<Box<dyn Mover>> {
        let costs = match *self {
            Self::Twin(None) => DmaCosts::unlimited(),
            Self::Twin(Some(bits)) => DmaCosts { to_device: bits / 8.0, ..DmaCosts::unlimited() },
            Self::Gpu(_) => {
                return Err(Error::invalid(
                    MOVER.with(self),
                    format!(
                        "a GPU reaches registered memory only; use twin, or measure with `inlane ntb bench {}`",
                        MOVER.with("gpu:N")
                    ),
                ));
            }
        };
        Ok(Box::new(DmaEngine::new("dma twin", costs)?))
    }
}
