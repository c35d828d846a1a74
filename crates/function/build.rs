//! Compiles the built-in packet functions in `functions/`. One build runs on every CPU of the target. On
//! x86-64, a second build needs AVX2. The program selects a build at run time.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=functions");
    println!("cargo::rerun-if-changed=include");
    let mut sources: Vec<PathBuf> = fs::read_dir("functions")
        .expect("functions/ beside build.rs")
        .map(|entry| entry.expect("functions/ can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    sources.sort();
    let x86 = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    compile(&sources, "v1", None);
    if x86 {
        compile(&sources, "v3", Some("-march=x86-64-v3"));
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("builtins.rs"), bindings(&sources, x86)).expect("OUT_DIR is writable");
}

/// Compiles all sources into a library. `variant` becomes a suffix of their symbols.
fn compile(sources: &[PathBuf], variant: &str, flag: Option<&str>) {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .cpp_link_stdlib(None)
        .include("include")
        .define("INLANE_VARIANT", format!("_{variant}").as_str())
        // Tests would be slow if debug builds did not optimize the functions.
        .opt_level(3)
        .flags(["-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-xc++"])
        .files(sources);
    if let Some(flag) = flag {
        build.flag(flag);
    }
    build.compile(&format!("inlane_functions_{variant}"));
}

/// Returns the Rust source of the table of functions: their names, sources, and entries for each build.
fn bindings(sources: &[PathBuf], x86: bool) -> String {
    let name = |path: &Path| {
        path.file_stem().and_then(|stem| stem.to_str()).expect("source names are plain UTF-8").to_owned()
    };
    let mut text = String::from("unsafe extern \"C\" {\n");
    let variants: &[&str] = if x86 { &["v1", "v3"] } else { &["v1"] };
    for source in sources {
        for variant in variants {
            writeln!(text, "    static inlane_function_{}_{variant}: FunctionEntry;", name(source))
                .expect("writing to a string cannot fail");
        }
    }
    writeln!(text, "}}\nstatic BUILT: [Built; {}] = [", sources.len())
        .expect("writing to a string cannot fail");
    for source in sources {
        // The path of the source within the crate. `include_str!` puts CARGO_MANIFEST_DIR in front of the
        // path when the crate is compiled. The crate's directory may have been moved since this script ran.
        let path = format!("/{}", source.to_str().expect("source names are plain UTF-8"));
        let name = name(source);
        writeln!(
            text,
            "    Built {{ symbol: {name:?}, file: \"{name}.cu\", source: include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {path:?})), \
             any: &raw const inlane_function_{name}_v1, avx2: &raw const inlane_function_{name}_{} }},",
            variants.last().expect("at least one")
        )
        .expect("writing to a string cannot fail");
    }
    text.push_str("];\n");
    text
}
