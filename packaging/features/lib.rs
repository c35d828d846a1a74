//! Contains nothing. Cargo.toml says what the crate is for.
