//! Files of rdma-core that machines with Linux's software RoCEv2 need.

use std::path::PathBuf;

/// Files that the machines need at the same paths as on this machine, because libibverbs loads them at run time. Each entry has a
/// path, with `*` for the architecture, and the package of the file.
const LOADED: [(&str, &str); 2] = [
    ("/usr/lib/*/libibverbs/librxe-rdmav*.so", "ibverbs-providers"),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
];

/// Returns the arguments of `run.py` for the files of rdma-core, those of `more`, the program `rdma`, and the kernel's modules.
///
/// # Errors
/// The reason why the test must be skipped, if a file is missing.
pub fn arguments(more: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let mut arguments = ["--module", "rdma_rxe", "--module", "crc32_generic"].map(String::from).to_vec();
    for (pattern, package) in more.iter().chain(&LOADED) {
        let missing = || format!("no {pattern}; install the package {package}");
        let path = find(pattern).ok_or_else(missing)?;
        arguments.extend(["--file".into(), format!("{0}:{0}", path.display())]);
    }
    let rdma = ["/usr/bin/rdma", "/usr/sbin/rdma", "/sbin/rdma"].into_iter().find_map(find);
    let rdma = rdma.ok_or("no rdma; install the package iproute2")?;
    arguments.extend(["--file".into(), rdma.display().to_string()]);
    Ok(arguments)
}

/// Returns the first file whose path matches the pattern. A component of the pattern may contain one `*`,
/// which stands for any text within that component.
fn find(pattern: &str) -> Option<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for part in pattern.split('/').skip(1) {
        let matching = |folder: PathBuf| -> Vec<PathBuf> {
            let Some((start, end)) = part.split_once('*') else { return vec![folder.join(part)] };
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let names = entries.filter(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                name.starts_with(start) && name.ends_with(end)
            });
            names.map(|entry| entry.path()).collect()
        };
        found = found.into_iter().flat_map(matching).filter(|path| path.exists()).collect();
    }
    found.into_iter().next()
}
