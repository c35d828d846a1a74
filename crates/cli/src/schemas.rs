//! The published schemas of what `--json` writes (docs/schema) are those of the types. To take over what changed on
//! purpose: `INLANE_BLESS=1 cargo test -p inlane schemas`.

use inlane_core::result::{PacketResult, TransferResult, schema};
use std::path::Path;

fn published(name: &str, schema: serde_json::Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema").join(name);
    let made = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if std::env::var_os("INLANE_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "docs/schema/{name} is not what is written; INLANE_BLESS=1 takes the change over");
}

#[test]
fn schemas_are_those_published() {
    published("packets.json", schema::<PacketResult>());
    published("transfers.json", schema::<TransferResult>());
    published("doctor.json", crate::doctor::schema());
}
