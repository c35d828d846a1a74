//! Makes the exported functions from `functions.txt`, and compiles those that need C's `long double`.

#[allow(dead_code)] // The test of the headers uses the rest.
mod table;

fn main() {
    println!("cargo:rerun-if-changed=functions.txt");
    println!("cargo:rerun-if-changed=table.rs");
    println!("cargo:rerun-if-changed=src/longdouble.c");
    let table = std::fs::read_to_string("functions.txt").expect("functions.txt is in the crate");
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::write(out.join("exports.rs"), table::exports(&table::read(&table)))
        .expect("OUT_DIR is writable");
    cc::Build::new().file("src/longdouble.c").warnings(true).compile("inlane_shmem_longdouble");
    // Set the library's soname. Programs record it when they are linked. It changes with each incompatible
    // release.
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets the version");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libinlane_shmem.so.{major}");
}
