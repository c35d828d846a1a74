//! Compares the headers and the exported names with `functions.txt` and with the specification.
//!
//! `INLANE_WRITE_HEADERS=1 cargo test -p inlane-shmem --test header` writes the headers after a change.

#[allow(dead_code)] // The build script uses the rest.
#[path = "../table.rs"]
mod table;

use std::collections::BTreeSet;
use std::path::Path;

fn read() -> Vec<table::Section> {
    table::read(include_str!("../functions.txt"))
}

#[test]
fn headers_are_made_from_the_table() {
    let sections = read();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/inlane");
    for (name, expected) in [
        ("shmem_functions.h", table::prototypes(&sections, false)),
        ("pshmem_functions.h", table::prototypes(&sections, true)),
        ("shmem_generics.h", table::generics(&sections)),
    ] {
        let path = folder.join(name);
        if std::env::var_os("INLANE_WRITE_HEADERS").is_some() {
            std::fs::write(&path, &expected).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "{name} differs from functions.txt; set INLANE_WRITE_HEADERS=1 to write it"
        );
    }
}

/// The element types of put and get, as they appear in function names. The constants from here on are tables
/// 5 to 10 of the OpenSHMEM specification.
const RMA: &str = "float double longdouble char schar short int long longlong uchar ushort uint ulong ulonglong \
                   int8 int16 int32 int64 uint8 uint16 uint32 uint64 size ptrdiff";
const AMO: &str = "int long longlong uint ulong ulonglong int32 int64 uint32 uint64 size ptrdiff";
const EXTENDED: &str =
    "float double int long longlong uint ulong ulonglong int32 int64 uint32 uint64 size ptrdiff";
const BITWISE: &str = "uint ulong ulonglong int32 int64 uint32 uint64";
const SYNC: &str =
    "short int long longlong ushort uint ulong ulonglong int32 int64 uint32 uint64 size ptrdiff";
const LOGIC: &str =
    "uchar ushort uint ulong ulonglong int8 int16 int32 int64 uint8 uint16 uint32 uint64 size";
const SUM: &str = "char schar short int long longlong ptrdiff uchar ushort uint ulong ulonglong int8 int16 int32 int64 \
                   uint8 uint16 uint32 uint64 size float double longdouble complexd complexf";
const ACTIVE_INTEGERS: &str = "short int long longlong";
const ACTIVE_ORDER: &str = "short int long longlong float double longdouble";
const ACTIVE_SUM: &str = "short int long longlong float double longdouble complexf complexd";

/// The functions of OpenSHMEM 1.5, chapters 9 and 10, and of the table of deprecated names. Each row has a
/// name with `*`, and the words that replace the `*`. The last value is true if the functions also have a
/// variant with a context.
const SPECIFICATION: &[(&str, &str, bool)] = &[
    (
        "shmem_*",
        "init my_pe n_pes finalize global_exit pe_accessible addr_accessible ptr info_get_version",
        false,
    ),
    (
        "shmem_*",
        "info_get_name init_thread query_thread malloc free realloc align malloc_with_hints calloc",
        false,
    ),
    (
        "shmem_team_*",
        "my_pe n_pes get_config translate_pe split_strided split_2d destroy create_ctx sync",
        false,
    ),
    ("shmem_ctx_*", "create destroy get_team fence quiet", false),
    ("shmem_*_put", RMA, true),
    ("shmem_*_p", RMA, true),
    ("shmem_*_iput", RMA, true),
    ("shmem_*_get", RMA, true),
    ("shmem_*_g", RMA, true),
    ("shmem_*_iget", RMA, true),
    ("shmem_*_put_nbi", RMA, true),
    ("shmem_*_get_nbi", RMA, true),
    ("shmem_*_put_signal", RMA, true),
    ("shmem_*_put_signal_nbi", RMA, true),
    ("shmem_put*", "8 16 32 64 128 mem", true),
    ("shmem_get*", "8 16 32 64 128 mem", true),
    ("shmem_put*_nbi", "8 16 32 64 128 mem", true),
    ("shmem_get*_nbi", "8 16 32 64 128 mem", true),
    ("shmem_put*_signal", "8 16 32 64 128 mem", true),
    ("shmem_put*_signal_nbi", "8 16 32 64 128 mem", true),
    ("shmem_iput*", "8 16 32 64 128", true),
    ("shmem_iget*", "8 16 32 64 128", true),
    ("shmem_*_atomic_fetch", EXTENDED, true),
    ("shmem_*_atomic_set", EXTENDED, true),
    ("shmem_*_atomic_swap", EXTENDED, true),
    ("shmem_*_atomic_compare_swap", AMO, true),
    ("shmem_*_atomic_fetch_inc", AMO, true),
    ("shmem_*_atomic_inc", AMO, true),
    ("shmem_*_atomic_fetch_add", AMO, true),
    ("shmem_*_atomic_add", AMO, true),
    ("shmem_*_atomic_fetch_and", BITWISE, true),
    ("shmem_*_atomic_and", BITWISE, true),
    ("shmem_*_atomic_fetch_or", BITWISE, true),
    ("shmem_*_atomic_or", BITWISE, true),
    ("shmem_*_atomic_fetch_xor", BITWISE, true),
    ("shmem_*_atomic_xor", BITWISE, true),
    ("shmem_*_atomic_fetch_nbi", EXTENDED, true),
    ("shmem_*_atomic_swap_nbi", EXTENDED, true),
    ("shmem_*_atomic_compare_swap_nbi", AMO, true),
    ("shmem_*_atomic_fetch_inc_nbi", AMO, true),
    ("shmem_*_atomic_fetch_add_nbi", AMO, true),
    ("shmem_*_atomic_fetch_and_nbi", BITWISE, true),
    ("shmem_*_atomic_fetch_or_nbi", BITWISE, true),
    ("shmem_*_atomic_fetch_xor_nbi", BITWISE, true),
    ("shmem_signal_*", "fetch wait_until", false),
    ("shmem_*_wait_until", SYNC, false),
    ("shmem_*_wait_until_all", SYNC, false),
    ("shmem_*_wait_until_any", SYNC, false),
    ("shmem_*_wait_until_some", SYNC, false),
    ("shmem_*_wait_until_all_vector", SYNC, false),
    ("shmem_*_wait_until_any_vector", SYNC, false),
    ("shmem_*_wait_until_some_vector", SYNC, false),
    ("shmem_*_test", SYNC, false),
    ("shmem_*_test_all", SYNC, false),
    ("shmem_*_test_any", SYNC, false),
    ("shmem_*_test_some", SYNC, false),
    ("shmem_*_test_all_vector", SYNC, false),
    ("shmem_*_test_any_vector", SYNC, false),
    ("shmem_*_test_some_vector", SYNC, false),
    (
        "shmem_*",
        "barrier_all sync_all barrier sync fence quiet set_lock clear_lock test_lock pcontrol",
        false,
    ),
    ("shmem_*_broadcast", RMA, false),
    ("shmem_*_collect", RMA, false),
    ("shmem_*_fcollect", RMA, false),
    ("shmem_*_alltoall", RMA, false),
    ("shmem_*_alltoalls", RMA, false),
    ("shmem_*mem", "broadcast collect fcollect alltoall alltoalls", false),
    ("shmem_*_and_reduce", LOGIC, false),
    ("shmem_*_or_reduce", LOGIC, false),
    ("shmem_*_xor_reduce", LOGIC, false),
    ("shmem_*_max_reduce", RMA, false),
    ("shmem_*_min_reduce", RMA, false),
    ("shmem_*_sum_reduce", SUM, false),
    ("shmem_*_prod_reduce", SUM, false),
    ("shmem_*32", "broadcast collect fcollect alltoall alltoalls", false),
    ("shmem_*64", "broadcast collect fcollect alltoall alltoalls", false),
    ("shmem_*_and_to_all", ACTIVE_INTEGERS, false),
    ("shmem_*_or_to_all", ACTIVE_INTEGERS, false),
    ("shmem_*_xor_to_all", ACTIVE_INTEGERS, false),
    ("shmem_*_max_to_all", ACTIVE_ORDER, false),
    ("shmem_*_min_to_all", ACTIVE_ORDER, false),
    ("shmem_*_sum_to_all", ACTIVE_SUM, false),
    ("shmem_*_prod_to_all", ACTIVE_SUM, false),
    ("shmem_*_fetch", "float double int long longlong", false),
    ("shmem_*_set", "float double int long longlong", false),
    ("shmem_*_swap", "float double int long longlong", false),
    ("shmem_*_cswap", "int long longlong", false),
    ("shmem_*_finc", "int long longlong", false),
    ("shmem_*_inc", "int long longlong", false),
    ("shmem_*_fadd", "int long longlong", false),
    ("shmem_*_add", "int long longlong", false),
    ("shmem_*_wait", "short int long longlong", false),
    (
        "shmem_*",
        "wait wait_until clear_cache_inv set_cache_inv clear_cache_line_inv set_cache_line_inv",
        false,
    ),
    ("shmem_*", "udcflush udcflush_line", false),
    ("*", "start_pes _my_pe _num_pes shmalloc shfree shrealloc shmemalign", false),
];

/// Functions of `functions.txt` that OpenSHMEM 1.5 does not have. Each row has a name with `*`, and the words
/// that replace the `*`.
const BEYOND: &[(&str, &str)] = &[
    ("shmem_*_and_reduce", ACTIVE_INTEGERS), // Sandia OpenSHMEM has these too.
    ("shmem_*_or_reduce", ACTIVE_INTEGERS),
    ("shmem_*_xor_reduce", ACTIVE_INTEGERS),
    ("shmem_*", "team_ptr ctx_session_start ctx_session_stop"), // OpenSHMEM 1.6
    ("shmem_*", "swap"),                                        // before 1.0
];

fn expand(template: &str, values: &str) -> Vec<String> {
    values.split_whitespace().map(|value| template.replacen('*', value, 1)).collect()
}

#[test]
fn the_table_has_the_specifications_functions() {
    let mut expected = BTreeSet::new();
    for (template, values, has_context) in SPECIFICATION {
        for name in expand(template, values) {
            if *has_context {
                assert!(expected.insert(name.replacen("shmem_", "shmem_ctx_", 1)), "{name} twice");
            }
            assert!(expected.insert(name.clone()), "{name} twice");
        }
    }
    let sections = read();
    let found: Vec<&str> =
        sections.iter().flat_map(|section| &section.functions).map(|one| one.name.as_str()).collect();
    let names: BTreeSet<String> = found.iter().map(|name| name.to_string()).collect();
    assert_eq!(names.len(), found.len(), "a name is in the table twice");
    let missing: Vec<_> = expected.difference(&names).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    let beyond: BTreeSet<String> =
        BEYOND.iter().flat_map(|(template, values)| expand(template, values)).collect();
    let unknown: Vec<_> = names.difference(&expected).filter(|name| !beyond.contains(*name)).collect();
    assert!(unknown.is_empty(), "neither in the specification nor in BEYOND: {unknown:?}");
}

#[test]
fn every_function_and_its_profiling_name_is_exported() {
    let path = std::env::current_exe().unwrap().with_file_name("libinlane_shmem.so");
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the library has no initialisers of its own.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "cannot load {path:?}");
    for function in read().iter().flat_map(|section| &section.functions) {
        for name in [function.name.clone(), table::profiling_name(&function.name)] {
            let symbol = std::ffi::CString::new(name.clone()).unwrap();
            // SAFETY: the library is loaded, and the name ends with 0.
            assert!(!unsafe { libc::dlsym(library, symbol.as_ptr()) }.is_null(), "{name} is not exported");
        }
    }
}

#[test]
fn headers_compile_in_every_language_version() {
    let folder = tempfile::tempdir().unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let (c, cpp) = (["c99", "c11", "c17"], ["c++98", "c++11", "c++20"]);
    for (compiler, suffix, versions) in
        [("cc", "c", c), ("clang", "c", c), ("c++", "cpp", cpp), ("clang++", "cpp", cpp)]
    {
        let source = folder.path().join(format!("all.{suffix}"));
        std::fs::write(&source, "#include <shmem.h>\n#include <pshmem.h>\n#include <mpp/shmem.h>\n").unwrap();
        for version in versions {
            let mut command = std::process::Command::new(compiler);
            command.args(["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
            command.arg(format!("-std={version}"));
            let Ok(output) = command.arg("-I").arg(&include).arg(&source).output() else {
                eprintln!("SKIPPED headers in {version}: no compiler '{compiler}'");
                continue;
            };
            assert!(
                output.status.success(),
                "{compiler} {version}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}
