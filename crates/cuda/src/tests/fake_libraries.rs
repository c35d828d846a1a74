//! Tests of the loaders and of errors, with small C libraries in place of the CUDA driver and of NVRTC. Each test runs in a
//! process of its own, because a process loads these libraries once.

use super::passes_in_a_child;
use crate::{CompiledProgram, Error, Source, compile, compiler_version, driver_version};
use inlane_core::error::Class;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the library `name` from C source. Returns its folder.
fn library(name: &str, source: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (c, so) = (folder.path().join("library.c"), folder.path().join(name));
    std::fs::write(&c, source).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&so, &c]).status();
    assert!(made.expect("a C compiler, which builds this workspace too").success());
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A driver of the version FAKE_VERSION, whose start returns FAKE_INIT. The start returns 999 if the variables that the
/// driver reads then are not as FAKE_QUEUES says.
const DRIVER: &str = r#"
#include <stdlib.h>
#include <string.h>
int cuDriverGetVersion(int *version) { return *version = atoi(getenv("FAKE_VERSION")), 0; }
int cuInit(unsigned flags) {
    const char *loading = getenv("CUDA_MODULE_LOADING"), *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (flags || !loading || strcmp(loading, "EAGER") || !queues || strcmp(queues, getenv("FAKE_QUEUES"))) return 999;
    return atoi(getenv("FAKE_INIT"));
}
int cuGetErrorName(int code, const char **text) { return *text = code == 803 ? "FAKE_MISMATCH" : 0, 0; }
int cuGetErrorString(int code, const char **text) { return *text = code == 803 ? "a fake reason" : 0, 0; }
"#;

fn with_driver(test: &str, version: &str, init: &str, environment: &[(&str, &str)]) {
    let folder = library("libcuda.so", DRIVER);
    let own = [("LD_LIBRARY_PATH", text(folder.path())), ("FAKE_VERSION", version), ("FAKE_INIT", init)];
    passes_in_a_child(&format!("fake_libraries::{test}"), &[&own, environment].concat());
}

#[test]
fn the_driver_must_be_new_enough() {
    with_driver("a_driver_is_too_old", "12070", "0", &[("FAKE_QUEUES", "32")]);
    with_driver("a_driver_starts", "12080", "0", &[("FAKE_QUEUES", "32")]);
}

#[test]
#[ignore = "run by the test above with an old driver"]
fn a_driver_is_too_old() {
    for _ in 0..2 {
        let error = driver_version().unwrap_err();
        let expected = "the CUDA driver is too old: it supports CUDA 12.7, and inlane needs 12.8; install a newer NVIDIA driver";
        assert_eq!((error.to_string().as_str(), error.class()), (expected, Class::Environment));
    }
}

#[test]
#[ignore = "run by the tests above and below with a driver that starts"]
fn a_driver_starts() {
    assert_eq!(driver_version().unwrap(), 12080);
}

#[test]
fn the_drivers_variables_are_set_unless_the_user_has_set_them() {
    let set = [("FAKE_QUEUES", "8"), ("CUDA_DEVICE_MAX_CONNECTIONS", "8")];
    with_driver("a_driver_starts", "12080", "0", &set);
}

#[test]
fn a_driver_that_does_not_start_says_why() {
    with_driver("the_start_fails", "13000", "803", &[("FAKE_QUEUES", "32")]);
    with_driver("the_start_fails_without_texts", "13000", "700", &[("FAKE_QUEUES", "32")]);
}

#[test]
#[ignore = "run by the test above with a driver that does not start"]
fn the_start_fails() {
    for _ in 0..2 {
        let error = driver_version().unwrap_err();
        let expected = "CUDA driver: cuInit failed: FAKE_MISMATCH (a fake reason); the kernel module and libcuda have different versions; reload the module or reboot";
        assert_eq!((error.to_string().as_str(), error.class()), (expected, Class::Environment));
    }
}

#[test]
#[ignore = "run by the test above with a driver that does not describe its errors"]
fn the_start_fails_without_texts() {
    let error = driver_version().unwrap_err();
    let expected =
        "CUDA driver: cuInit failed: error 700 (this driver has no description); a kernel accessed";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(error.class(), Class::Failed);
}

/// A compiler whose answer is FAKE_ANSWER. Its machine code lists what it was given. It writes to the file FAKE_LIVE how
/// many programs exist.
const COMPILER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static char code[4096];
static int live;
static void count(int by) { FILE *f = fopen(getenv("FAKE_LIVE"), "w"); fprintf(f, "%d", live += by); fclose(f); }
int nvrtcVersion(int *major, int *minor) { *major = 13, *minor = 1; return 0; }
int nvrtcCreateProgram(void **p, const char *source, const char *name, int n, const char **texts, const char **names) {
    int at = sprintf(code, "%s|%s", name, source);
    for (int i = 0; i < n; i++) at += sprintf(code + at, "|%s=%s", names[i], texts[i]);
    *p = code, count(1);
    return 0;
}
int nvrtcDestroyProgram(void **p) { *p = 0, count(-1); return 0; }
int nvrtcCompileProgram(void *p, int n, const char **options) {
    int at = strlen(code);
    for (int i = 0; i < n; i++) at += sprintf(code + at, "|%s", options[i]);
    return atoi(getenv("FAKE_ANSWER"));
}
static const char log_text[] = "x.cu(1): a message\n";
int nvrtcGetProgramLogSize(void *p, size_t *bytes) { *bytes = sizeof log_text; return 0; }
int nvrtcGetProgramLog(void *p, char *text) { memcpy(text, log_text, sizeof log_text); return 0; }
int nvrtcGetCUBINSize(void *p, size_t *bytes) { *bytes = strlen(code); return 0; }
int nvrtcGetCUBIN(void *p, char *bytes) { memcpy(bytes, code, strlen(code)); return 0; }
const char *nvrtcGetErrorString(int code) { return code == 5 ? "FAKE_OPTION" : "FAKE_OTHER"; }
"#;

const SOURCE: Source<'_> =
    Source { name: "x.cu", source: "body", headers: &[("a.h", "A"), ("b.h", "B")], options: &["-DN=3"] };

fn with_compiler(test: &str, compiler: &str, answer: &str) {
    let folder = library("libnvrtc.so", compiler);
    let [library, live, cache] = ["libnvrtc.so", "live", "cache"].map(|name| folder.path().join(name));
    let environment = [("INLANE_NVRTC", &library), ("FAKE_LIVE", &live), ("INLANE_CACHE", &cache)];
    let environment = environment.map(|(name, path)| (name, text(path)));
    passes_in_a_child(
        &format!("fake_libraries::{test}"),
        &[&environment[..], &[("FAKE_ANSWER", answer)]].concat(),
    );
    if answer != "none" {
        assert_eq!(std::fs::read_to_string(live).unwrap(), "0", "each program is destroyed");
    }
}

#[test]
fn the_compiler_gets_all_that_the_source_needs() {
    with_compiler("a_program_compiles_once", COMPILER, "0");
}

#[test]
#[ignore = "run by the test above with a compiler that shows what it was given"]
fn a_program_compiles_once() {
    let is = |program: &CompiledProgram, code: &str, is_cached: bool| {
        let found = String::from_utf8_lossy(program.machine_code()).into_owned();
        assert_eq!((found.as_str(), program.arch(), program.is_cached()), (code, "sm_90", is_cached));
    };
    assert_eq!(compiler_version().unwrap().0, "13.1");
    let code = "x.cu|body|a.h=A|b.h=B|--gpu-architecture=sm_90|--std=c++17|-DN=3";
    is(&compile(&SOURCE, "sm_90").unwrap(), code, false);
    is(&compile(&SOURCE, "sm_90").unwrap(), code, true);
    let other = Source { options: &["-DN=4"], ..SOURCE };
    is(&compile(&other, "sm_90").unwrap(), &code.replace('3', "4"), false);
    // Messages about registers are output of the compiler, so the compiler must run each time.
    let verbose = Source { options: &["--ptxas-options=-v"], ..SOURCE };
    for _ in 0..2 {
        is(&compile(&verbose, "sm_90").unwrap(), &code.replace("-DN=3", "--ptxas-options=-v"), false);
    }
    let zero = Source { source: "a\0b", ..SOURCE };
    let error = compile(&zero, "sm_90").unwrap_err();
    assert_eq!(error.to_string(), "x.cu: the source contains a zero byte; remove it");
}

#[test]
fn the_compilers_answers_become_errors() {
    // The numbers are NVRTC_ERROR_COMPILATION, _INVALID_OPTION and _BUILTIN_OPERATION_FAILURE.
    with_compiler("a_source_does_not_compile", COMPILER, "6");
    with_compiler("an_option_is_refused", COMPILER, "5");
    with_compiler("the_built_ins_are_missing", COMPILER, "7");
}

#[test]
#[ignore = "run by the test above with a compiler that refuses the source"]
fn a_source_does_not_compile() {
    let error = compile(&SOURCE, "sm_90").unwrap_err();
    assert_eq!(error.to_string(), "x.cu: it does not compile for sm_90:\nx.cu(1): a message");
    assert_eq!(error.class(), Class::Usage);
}

#[test]
#[ignore = "run by the test above with a compiler that refuses an option"]
fn an_option_is_refused() {
    let error = compile(&SOURCE, "sm_90").unwrap_err();
    let expected =
        "NVRTC 13.1: nvrtcCompileProgram failed: FAKE_OPTION; this version does not know an option";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(error.class(), Class::Environment);
}

#[test]
#[ignore = "run by the test above with a compiler that lacks its built-ins"]
fn the_built_ins_are_missing() {
    let error = compile(&SOURCE, "sm_90").unwrap_err();
    assert!(error.to_string().ends_with("put libnvrtc-builtins.so beside libnvrtc.so"), "{error}");
}

#[test]
fn what_is_not_a_compiler_is_named() {
    with_compiler("no_compiler_is_found", "int nvrtcVersion(int *a, int *b) { return 0; }", "none");
    let folder = tempfile::tempdir().unwrap();
    let [text_file, absent] = ["text", "absent"].map(|name| folder.path().join(name));
    std::fs::write(&text_file, "no library").unwrap();
    for file in [&text_file, &absent] {
        passes_in_a_child("fake_libraries::no_compiler_is_found", &[("INLANE_NVRTC", text(file))]);
    }
}

#[test]
#[ignore = "run by the test above with files that are no compiler"]
fn no_compiler_is_found() {
    let error = compile(&SOURCE, "sm_90").unwrap_err();
    let (named, shown) = (PathBuf::from(std::env::var_os("INLANE_NVRTC").unwrap()), error.to_string());
    assert!(matches!(error, Error::NoCompiler { .. }) && error.class() == Class::Environment, "{shown}");
    assert!(shown.contains(text(&named)) && shown.contains("; install it with 'pip install"), "{shown}");
    assert_eq!(shown.contains("which does not exist (unset or correct it)"), !named.exists(), "{shown}");
}
