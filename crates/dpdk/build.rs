//! Finds DPDK with pkg-config, generates the bindings, and compiles the C files of `src/sys`. Links DPDK and
//! its drivers statically. The program then runs on machines without DPDK.

use std::env;
use std::path::{Path, PathBuf};
use std::process::exit;

/// The drivers to link, if the installed DPDK has them. No driver needs a vendor's library. Each archive is
/// linked as a whole: a driver registers itself by a constructor, to which no other code refers.
const DRIVERS: &[&str] = &[
    "bus_pci",
    "bus_vdev",
    "common_iavf",
    "mempool_ring",
    "mempool_stack",
    "dma_skeleton",
    "net_null",
    "net_ring",
    "net_af_packet",
    "net_tap",
    "net_e1000",
    "net_ena",
    "net_gve",
    "net_i40e",
    "net_iavf",
    "net_ice",
    "net_igc",
    "net_ixgbe",
    "net_virtio",
    "net_vmxnet3",
];

/// DPDK's core libraries. Like the drivers, they are linked as a whole. Their constructors register parts
/// that no code refers to. The linker would drop these parts if it chose what to link.
const WHOLE: &[&str] = &["ethdev", "eal", "mempool", "mbuf", "ring"];

/// System libraries that are linked statically if possible. Their licences (BSD and zlib) require a notice:
/// THIRD-PARTY-NOTICES.txt.
const SYSTEM_STATIC: &[&str] = &["xdp", "bpf", "z", "bsd", "md"];

/// System libraries that are linked dynamically. The LGPL demands that users can replace them.
const SYSTEM_DYNAMIC: &[&str] = &["elf", "numa"];

/// A driver that is linked from a copy in which some calls have other names, and the C file that defines these
/// names.
struct ChangedDriver {
    /// The driver's name in DPDK.
    name: &'static str,
    /// Calls of the driver, and the functions of `source` that replace these calls.
    calls: &'static [(&'static str, &'static str)],
    /// A file of `src/sys`, without `.c`.
    source: &'static str,
    /// The Debian packages that `source` needs, for error messages.
    packages: &'static str,
}

const CHANGED_DRIVERS: &[ChangedDriver] = &[
    // The original functions would replace and remove XDP programs of other processes.
    ChangedDriver {
        name: "net_af_xdp",
        calls: &[
            ("xsk_socket__create", "inlane_xsk_socket_create"),
            ("bpf_xdp_detach", "inlane_bpf_xdp_detach"),
        ],
        source: "xdp",
        packages: "libxdp-dev and libbpf-dev",
    },
    // With the original function, a client that closes at once would end the process of the server.
    ChangedDriver {
        name: "net_memif",
        calls: &[("sendmsg", "inlane_memif_sendmsg")],
        source: "memif",
        packages: "libc6-dev",
    },
];

/// The packages that this build needs, for error messages.
const PACKAGES: &str = "apt-get install libdpdk-dev pkg-config clang libclang-dev gcc binutils";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/sys");
    println!("cargo:rerun-if-env-changed=OBJCOPY");
    let flags = compile_flags();
    bindings(&flags);
    inline_functions(&flags);
    replacing_functions();
    link();
}

fn fail(what: &str) -> ! {
    eprintln!("\n{what}\nOn Debian and Ubuntu: {PACKAGES}\n");
    exit(1)
}

fn pkg_config(arguments: &[&str]) -> String {
    let output = std::process::Command::new("pkg-config").args(arguments).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Ok(output) => fail(&format!(
            "pkg-config does not find DPDK's development files: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => fail(&format!("inlane-dpdk needs pkg-config to find DPDK: {error}")),
    }
}

/// Returns the include paths and the instruction set with which DPDK's inline functions must be compiled.
fn compile_flags() -> Vec<String> {
    // Do not pass `--static`. With it, pkg-config would require the packages of drivers that are not linked
    // here.
    let flags = pkg_config(&["--cflags", "libdpdk"]);
    flags.split_whitespace().map(str::to_owned).collect()
}

fn bindings(flags: &[String]) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let made = bindgen::Builder::default()
        .header("src/sys/inline.h")
        .clang_args(flags)
        .allowlist_function("inlane_.*")
        .allowlist_function("rte_(eal_init|eal_cleanup|eal_has_hugepages|eal_iova_mode|eal_hotplug_add|eal_hotplug_remove)")
        .allowlist_function("rte_(thread_register|thread_unregister|lcore_count|strerror|version|log_set_global_level)")
        .allowlist_function("rte_log_set_level_(pattern|regexp)")
        .allowlist_function("rte_eth_(dev_(info_get|configure|start|stop|close|get_port_by_name|adjust_nb_rx_tx_desc|set_mtu|get_mtu|socket_id|callback_register|callback_unregister|is_valid_port|tx_offload_name)|rx_queue_setup|tx_queue_setup|stats_get|link_get_nowait|link_speed_to_str|promiscuous_enable|tx_done_cleanup|macaddr_get|find_next_owned_by)")
        .allowlist_function("rte_(pktmbuf_pool_create|pktmbuf_pool_create_extbuf|pktmbuf_pool_init|pktmbuf_init|mempool_create_empty|mempool_set_ops_byname|mempool_populate_virt|mempool_populate_iova|mempool_obj_iter|mempool_mem_iter|mempool_free|mempool_in_use_count|mempool_avail_count)")
        .allowlist_function("rte_(extmem_register|extmem_unregister|dev_dma_map|dev_dma_unmap|mem_virt2iova|mem_check_dma_mask|socket_id)")
        .allowlist_function("rte_dma_.*")
        .allowlist_var("RTE_ETH_(LINK|MQ|RSS|RX_OFFLOAD|TX_OFFLOAD)_.*")
        .allowlist_var("RTE_(LOG_.*|PKTMBUF_HEADROOM|MEMPOOL_CACHE_MAX_SIZE|VER_.*|MAX_LCORE|DMA_.*)")
        .allowlist_var("INLANE_.*")
        .allowlist_type("rte_(pktmbuf_extmem|eth_dev_info|eth_conf|eth_stats|eth_link|eth_event_type|iova_mode)")
        .allowlist_type("rte_dma_.*")
        .opaque_type("rte_(mempool|mbuf|mempool_.*|device|intr_handle)")
        .opaque_type("rte_eth_dev_data")
        .derive_default(true)
        .layout_tests(false)
        .prepend_enum_name(false)
        .generate_comments(false)
        .formatter(bindgen::Formatter::None)
        .generate();
    match made {
        Ok(bindings) => {
            bindings.write_to_file(out.join("bindings.rs")).expect("cargo's output directory takes files");
        }
        Err(error) => fail(&format!("bindgen cannot read DPDK's headers (is libclang there?): {error}")),
    }
}

fn inline_functions(flags: &[String]) {
    let mut build = cc::Build::new();
    build
        .files(["src/sys/burst.c", "src/sys/environment.c", "src/sys/pool.c"])
        .flag("-std=gnu11")
        // Turn off strict aliasing, because `burst.c` writes a packet's length and port by one 64-bit store.
        .flag("-fno-strict-aliasing")
        // Without this flag, GCC may merge stores into a vector store. A later load of a single word would
        // stall, because a CPU cannot forward part of a vector store.
        .flag_if_supported("-fno-tree-slp-vectorize")
        .opt_level(3)
        .warnings(false);
    for flag in flags {
        build.flag(flag);
    }
    if let Err(error) = build.try_compile("inlane_dpdk_inline") {
        fail(&format!("the C compiler refused a file of src/sys: {error}"));
    }
}

/// Compiles the C file of each changed driver into a separate library. [`link`] lists it next to the driver,
/// because the driver calls its functions.
fn replacing_functions() {
    for ChangedDriver { source, packages, .. } in CHANGED_DRIVERS {
        let mut build = cc::Build::new();
        build.file(format!("src/sys/{source}.c")).flag("-std=gnu11").opt_level(2).cargo_metadata(false);
        if let Err(error) = build.try_compile(&format!("inlane_{source}")) {
            fail(&format!("the C compiler refused src/sys/{source}.c, which needs {packages}: {error}"));
        }
    }
}

/// Writes a copy of a driver with its calls renamed. Returns the copy's library name.
fn renamed_driver(driver: &ChangedDriver, directory: &Path) -> String {
    let name = format!("inlane_{}", driver.name);
    let archive = directory.join(format!("librte_{}.a", driver.name));
    let copy = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join(format!("lib{name}.a"));
    let renames = driver.calls.iter().map(|(from, to)| format!("--redefine-sym={from}={to}"));
    let objcopy = env::var("OBJCOPY").unwrap_or_else(|_| "objcopy".into());
    let status = std::process::Command::new(&objcopy).args(renames).arg(&archive).arg(&copy).status();
    if !status.is_ok_and(|status| status.success()) {
        fail(&format!("{objcopy} cannot rename symbols of {}; set OBJCOPY", archive.display()));
    }
    let bytes = std::fs::read(&copy).unwrap_or_default();
    for (from, to) in driver.calls {
        if !bytes.windows(to.len()).any(|window| window == to.as_bytes()) {
            fail(&format!(
                "the driver {} does not call {from}: this DPDK release is not supported",
                archive.display()
            ));
        }
    }
    name
}

/// Prints the libraries to link, in DPDK's own order. The modifier `-bundle` keeps the libraries out of this
/// crate's rlib, so only the final link of the program reads them.
fn link() {
    let directory = PathBuf::from(pkg_config(&["--variable=libdir", "libdpdk"]));
    println!("cargo:rustc-link-search=native={}", directory.display());
    println!("cargo:rustc-link-search=native={}", env::var("OUT_DIR").expect("cargo sets it"));
    // Take only the order of the libraries from DPDK's list. Leave out the flags of the list, because they
    // would link every library as a whole.
    let list = pkg_config(&["--static", "--libs-only-l", "--libs-only-other", "libdpdk"]);
    let archives: Vec<&str> = list
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("-l:librte_")?.strip_suffix(".a"))
        .collect();
    if archives.is_empty() {
        fail("libdpdk's pkg-config file names no static archives");
    }
    let is_driver = |name: &str| {
        ["bus_", "common_", "mempool_", "net_", "dma_", "crypto_", "compress_", "regex_", "vdpa_", "event_"]
            .iter()
            .chain(&["baseband_", "raw_", "ml_", "gpu_"])
            .any(|kind| name.starts_with(kind))
    };
    for name in archives {
        if let Some(driver) = CHANGED_DRIVERS.iter().find(|driver| driver.name == name) {
            for name in [renamed_driver(driver, &directory), format!("inlane_{}", driver.source)] {
                println!("cargo:rustc-link-lib=static:+whole-archive,-bundle={name}");
            }
        } else if DRIVERS.contains(&name) || WHOLE.contains(&name) {
            println!("cargo:rustc-link-lib=static:+whole-archive,-bundle=rte_{name}");
        } else if !is_driver(name) {
            println!("cargo:rustc-link-lib=static:-bundle=rte_{name}");
        }
    }
    for name in SYSTEM_STATIC {
        let kind = if directory.join(format!("lib{name}.a")).exists() { "static:-bundle" } else { "dylib" };
        println!("cargo:rustc-link-lib={kind}={name}");
    }
    for name in SYSTEM_DYNAMIC {
        println!("cargo:rustc-link-lib=dylib={name}");
    }
    for name in ["m", "dl", "pthread"] {
        println!("cargo:rustc-link-lib=dylib={name}");
    }
}
