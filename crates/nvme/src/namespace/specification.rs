//! The text that names a namespace: `memory:SIZE`, `file:PATH`, `block:PATH`, with options after commas.

use crate::{Error, Result};
use inlane_core::units;
use std::path::PathBuf;
use std::str::FromStr;

/// The kind of storage, with the data that locates it, such as a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageKind {
    /// Memory of the target's process.
    Memory {
        /// The size.
        bytes: u64,
    },
    /// A regular file.
    File {
        /// Its path.
        path: PathBuf,
        /// If the file does not exist, it is created with this size. `None`: the file must exist.
        create_bytes: Option<u64>,
        /// Whether reads and writes bypass the page cache. `None`: they do if the file system allows it.
        direct: Option<bool>,
    },
    /// A block device.
    Block {
        /// Its path.
        path: PathBuf,
        /// As for a file.
        direct: Option<bool>,
    },
}

/// A parsed text that names a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Specification {
    /// The text itself.
    pub text: String,
    /// The kind of storage.
    pub kind: StorageKind,
    /// The requested block size. `None`: 512 bytes, or more if the storage needs that.
    pub block_bytes: Option<u32>,
    /// True if hosts may not write.
    pub read_only: bool,
}

impl FromStr for Specification {
    type Err = Error;

    /// Parses `KIND:ARGUMENT[,OPTION]...`. Reads options from the end of the text, so a path may contain
    /// commas.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |why: String| Error::invalid(format!("namespace '{text}'"), why);
        let Some((kind, mut rest)) = text.split_once(':') else {
            return Err(invalid("give memory:SIZE, file:PATH or block:PATH".into()));
        };
        let (mut read_only, mut block_bytes, mut size, mut direct) = (false, None, None, None);
        while let Some((before, option)) = rest.rsplit_once(',') {
            match option.split_once('=') {
                None if option == "ro" => read_only = true,
                Some(("lba", value)) => {
                    let bytes = value.parse().ok().filter(|bytes| [512, 4096].contains(bytes));
                    let refused = || invalid(format!("lba={value}: choose one of lba=512, lba=4096"));
                    block_bytes = Some(bytes.ok_or_else(refused)?);
                }
                Some(("size", value)) if kind == "file" => {
                    size = Some(units::parse_size(value).map_err(|error| invalid(error.to_string()))?);
                }
                Some(("direct", "on")) if kind != "memory" => direct = Some(true),
                Some(("direct", "off")) if kind != "memory" => direct = Some(false),
                Some(("direct", value)) if kind != "memory" => {
                    return Err(invalid(format!("direct={value}: choose one of direct=on, direct=off")));
                }
                _ if kind == "memory" => {
                    return Err(invalid(format!(
                        "unknown option '{option}'; options are ro and lba=512|4096"
                    )));
                }
                // The comma belongs to the path, because no option follows.
                _ => break,
            }
            rest = before;
        }
        if rest.is_empty() {
            return Err(invalid(format!("nothing follows '{kind}:'; give a size or a path")));
        }
        if kind == "memory" {
            size = Some(units::parse_size(rest).map_err(|error| invalid(error.to_string()))?);
        }
        let block = u64::from(block_bytes.unwrap_or(512));
        if size.is_some_and(|bytes| bytes == 0 || !bytes.is_multiple_of(block)) {
            return Err(invalid(format!("give a multiple of {block} bytes, the block size, above 0")));
        }
        let kind = match (kind, size) {
            ("memory", Some(bytes)) => StorageKind::Memory { bytes },
            ("file", _) => StorageKind::File { path: rest.into(), create_bytes: size, direct },
            ("block", _) => StorageKind::Block { path: rest.into(), direct },
            (other, _) => {
                return Err(invalid(format!(
                    "unknown kind '{other}'; give memory:SIZE, file:PATH or block:PATH"
                )));
            }
        };
        Ok(Self { text: text.into(), kind, block_bytes, read_only })
    }
}
