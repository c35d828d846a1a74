//! Finds DPDK (distribution package, by pkg-config), makes the bindings, compiles the inline functions, and links the
//! drivers that are used statically, so that one binary travels.

use std::env;
use std::path::PathBuf;
use std::process::exit;

/// Drivers: their constructors register them, so every object of the archive is linked. Those that a DPDK release
/// lacks are left out. Not here: drivers that need libraries of a vendor (mlx5: rdma-core's), and net_pcap.
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
    "net_af_xdp",
    "net_tap",
    "net_memif",
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

/// Libraries under the drivers, linked as far as they are used, except that these register themselves.
const WHOLE: &[&str] = &["ethdev", "eal", "mempool", "mbuf", "ring"];

/// System libraries that the drivers use, linked statically where the distribution has the archive. Their licences
/// (BSD and zlib) only ask for a notice, see THIRD-PARTY-NOTICES.txt.
const SYSTEM_STATIC: &[&str] = &["xdp", "bpf", "z", "bsd", "md"];

/// System libraries under the LGPL, which lets users replace them; linked dynamically for that reason.
const SYSTEM_DYNAMIC: &[&str] = &["elf", "numa"];

/// What to install where something is missing.
const PACKAGES: &str = "apt-get install libdpdk-dev pkg-config clang libclang-dev gcc";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/sys/inline.c");
    println!("cargo:rerun-if-changed=src/sys/inline.h");
    let flags = compile_flags();
    bindings(&flags);
    inline_functions(&flags);
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
            "inlane-dpdk needs DPDK's development files, which pkg-config does not find: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => fail(&format!("inlane-dpdk needs pkg-config to find DPDK: {error}")),
    }
}

/// The include paths and the instruction set that DPDK's inline functions were written for.
fn compile_flags() -> Vec<String> {
    // Without --static: its private requirements are for drivers that are not used here.
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
        .file("src/sys/inline.c")
        .flag("-std=gnu11")
        // Length and port are written as one; words that are read one by one must not be written as a vector.
        .flag("-fno-strict-aliasing")
        .flag_if_supported("-fno-tree-slp-vectorize")
        .opt_level(3)
        .warnings(false);
    for flag in flags {
        build.flag(flag);
    }
    if let Err(error) = build.try_compile("inlane_dpdk_inline") {
        fail(&format!("the C compiler refused src/sys/inline.c: {error}"));
    }
}

/// Links in the order that DPDK's own static list has; `-bundle` leaves the archives to the final link.
fn link() {
    let directory = PathBuf::from(pkg_config(&["--variable=libdir", "libdpdk"]));
    println!("cargo:rustc-link-search=native={}", directory.display());
    // The private libraries are all of DPDK as whole archives: only its order is taken.
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
        if DRIVERS.contains(&name) || WHOLE.contains(&name) {
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
