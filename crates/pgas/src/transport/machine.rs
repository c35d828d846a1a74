//! The identity of this machine, by which PEs find out which of them run on the same one.

/// Returns a text that identifies this machine: the boot ID of the running kernel, or the machine's host name
/// if there is no boot ID, as in some containers. The text has no blank and no slash.
pub(crate) fn machine() -> String {
    machine_by("/proc/sys/kernel/random/boot_id")
}

/// Returns the boot ID in the file `path`, or the machine's host name if the file cannot be read.
fn machine_by(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    match text.trim() {
        "" => rustix::system::uname().nodename().to_string_lossy().replace([' ', '/'], "."),
        text => text.replace([' ', '/'], "."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_boot_id_is_identified_by_its_host_name() {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let name = name.trim().replace([' ', '/'], ".");
        assert_eq!(machine_by("/proc/no-such-file"), name);
        assert_eq!(machine_by("/dev/null"), name);
        assert_eq!(machine(), machine());
        let directory = tempfile::tempdir().unwrap();
        let boot_id = directory.path().join("boot_id");
        std::fs::write(&boot_id, "12-34\n").unwrap();
        assert_eq!(machine_by(boot_id.to_str().unwrap()), "12-34");
    }
}
