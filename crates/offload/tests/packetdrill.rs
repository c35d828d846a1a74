//! Runs the scripts in `tests/packetdrill` with the program packetdrill, which drives the engine through
//! `examples/packetdrill.rs`. Each script states the rule that it checks. Scripts whose names begin with
//! `ipv6_` run over IPv6. Needs packetdrill on the PATH, or its path in `INLANE_PACKETDRILL`.

use std::path::{Path, PathBuf};
use std::process::Command;

fn packetdrill() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("INLANE_PACKETDRILL") {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("packetdrill")).find(|file| file.is_file())
}

/// Builds two libraries and returns their paths: the one that packetdrill loads, and the preloaded library.
fn build() -> (PathBuf, PathBuf) {
    // Find the folder of the build profile. Cargo puts this test's executable into its subfolder `deps`.
    let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let example =
        ["inlane-offload", "--no-default-features", "--features", "packetdrill", "--example", "packetdrill"];
    let packages: [&[&str]; 2] = [&example, &["inlane-preload"]];
    for package in packages {
        let mut command = Command::new(env!("CARGO"));
        command.args(["build", "--quiet", "--package"]).args(package);
        if !cfg!(debug_assertions) {
            command.arg("--release");
        }
        command.arg("--target-dir").arg(folder.parent().unwrap());
        assert!(command.status().unwrap().success(), "{package:?} could not be built");
    }
    (folder.join("examples/libpacketdrill.so"), folder.join("libinlane_preload.so"))
}

#[test]
fn every_script_of_packetdrill_passes() {
    let Some(packetdrill) = packetdrill() else {
        eprintln!(
            "SKIPPED every_script_of_packetdrill_passes: packetdrill is missing; build it from github.com/google/packetdrill, \
             and add it to the PATH or set INLANE_PACKETDRILL to its path"
        );
        return;
    };
    let (library, preload) = build();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packetdrill");
    let mut scripts: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    assert!(!scripts.is_empty());
    let mut failed = Vec::new();
    for script in scripts {
        let mut command = Command::new(&packetdrill);
        command.arg(format!("--so_filename={}", library.display()));
        let v6 = script.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ipv6_"));
        let (prefix, local, gateway) = match v6 {
            true => ("fd00::2/48", "fd00::2", "fd00::1"),
            false => ("192.168.0.2/16", "192.168.0.2", "192.168.0.1"),
        };
        let preload = preload.display();
        command.arg(format!("--so_flags=preload={preload},local={prefix},gateway={gateway}"));
        command.args([format!("--local_ip={local}"), format!("--gateway_ip={gateway}")]);
        if v6 {
            command.args(["--ip_version=ipv6", "--remote_ip=fd00:1::1"]);
        }
        command.arg(&script);
        let output = command.output().unwrap();
        if !output.status.success() {
            failed.push(format!("{}\n{}", script.display(), String::from_utf8_lossy(&output.stderr)));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
