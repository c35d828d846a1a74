//! Compiles the packet functions of `functions/` for the CPU: once for any CPU of the target, and on x86-64 once more for
//! those with AVX2; which of the two runs is decided when the program starts.

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

fn compile(sources: &[PathBuf], variant: &str, flag: Option<&str>) {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .cpp_link_stdlib(None)
        .include("include")
        .define("INLANE_VARIANT", format!("_{variant}").as_str())
        // The functions are the hot path of debug builds too: an unoptimized one would make every test crawl.
        .opt_level(3)
        .flags(["-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-xc++"])
        .files(sources);
    if let Some(flag) = flag {
        build.flag(flag);
    }
    build.compile(&format!("inlane_functions_{variant}"));
}

/// The entries as Rust sees them: `(name, source, entry for any CPU, entry for CPUs with AVX2)`.
fn bindings(sources: &[PathBuf], x86: bool) -> String {
    let name = |path: &Path| path.file_stem().and_then(|stem| stem.to_str()).expect("plain names").to_owned();
    let mut text = String::from("unsafe extern \"C\" {\n");
    let variants: &[&str] = if x86 { &["v1", "v3"] } else { &["v1"] };
    for source in sources {
        for variant in variants {
            writeln!(text, "    static inlane_function_{}_{variant}: FunctionEntry;", name(source))
                .expect("a string");
        }
    }
    writeln!(text, "}}\nstatic BUILT: [Built; {}] = [", sources.len()).expect("a string");
    for source in sources {
        // As the crate's folder is called when this is compiled: it may have been moved since, together with OUT_DIR.
        let path = format!("/{}", source.to_str().expect("plain names"));
        let name = name(source);
        writeln!(
            text,
            "    Built {{ symbol: {name:?}, file: \"{name}.cu\", source: include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {path:?})), \
             any: &raw const inlane_function_{name}_v1, avx2: &raw const inlane_function_{name}_{} }},",
            variants.last().expect("at least one")
        )
        .expect("a string");
    }
    text.push_str("];\n");
    text
}
