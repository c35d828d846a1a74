//! From ports as users write them to open ports, and the pools that fill them.

use crate::config::Config;
use crate::error::Result;
use inlane_core::{HeapPool, Pool, Port};
use std::sync::Arc;

/// True for ports that may stand on both sides of a run under one name; captures, generators and checkers are one each.
pub fn is_shared(_name: &str) -> bool {
    true
}

/// Opens every port.
pub fn ports(_names: &[String], _config: &Config) -> Result<Vec<Box<dyn Port>>> {
    Ok(Vec::new())
}

/// A pool for each pipeline of each direction.
pub fn pools(
    _ports: &[Box<dyn Port>],
    config: &Config,
    directions: usize,
) -> Result<Vec<Vec<Arc<dyn Pool>>>> {
    let one = || -> Result<Arc<dyn Pool>> { Ok(Arc::new(HeapPool::new(config.buffers, config.room)?)) };
    (0..directions).map(|_| (0..config.pipelines).map(|_| one()).collect()).collect()
}
