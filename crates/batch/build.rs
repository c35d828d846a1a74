//! Sets the library's soname. Programs record it when they are linked. It changes with each incompatible release.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets the version");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libinlane_batch.so.{major}");
}
