//! NVRTC, CUDA's run-time compiler: found, loaded, run, and its results cached.
//!
//! It is looked for in `INLANE_NVRTC` (a file), where the loader looks, in the `nvidia/*/lib` folders of Python's
//! site-packages (the wheel `nvidia-cuda-nvrtc`), and under `/usr/local/cuda*`. Machine code is made for the very
//! architecture, not PTX: PTX from a newer compiler does not load on an older driver.

use crate::cache;
use crate::error::{Error, Result};
use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A source to compile, with the headers it includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source<'a> {
    /// Its name in messages (`my.cu`).
    pub name: &'a str,
    /// CUDA C++.
    pub source: &'a str,
    /// Names, as included, and texts.
    pub headers: &'a [(&'a str, &'a str)],
    /// Options beyond the architecture (`-DBURST=16`, `-lineinfo`).
    pub options: &'a [&'a str],
}

/// Machine code for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledProgram {
    arch: String,
    machine_code: Vec<u8>,
    log: String,
    cached: bool,
}

impl CompiledProgram {
    /// The architecture (`sm_90`).
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// An ELF image that the driver loads.
    pub fn machine_code(&self) -> &[u8] {
        &self.machine_code
    }

    /// The compiler's warnings; empty where it came from the cache.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// It was compiled earlier.
    pub fn is_cached(&self) -> bool {
        self.cached
    }
}

/// The compiler's version and the file it was loaded from.
///
/// # Errors
/// [`Error::NoCompiler`].
pub fn compiler_version() -> Result<(String, PathBuf)> {
    let compiler = compiler()?;
    Ok((compiler.version.clone(), compiler.path.clone()))
}

/// Compiles for `arch` (`sm_90`, as [`crate::DeviceInfo::arch`] says), or finds what was compiled before; not where the assembler is
/// asked to say something (`--ptxas-options=-v`), for what it said is not kept.
///
/// # Errors
/// [`Error::DoesNotCompile`] with the compiler's messages, [`Error::NoCompiler`], or [`Error::Compiler`] for an architecture that
/// this compiler does not know.
pub fn compile(program: &Source<'_>, arch: &str) -> Result<CompiledProgram> {
    let compiler = compiler()?;
    let key = key(program, arch, &compiler.version);
    let asked = program.options.iter().any(|option| option.starts_with("--ptxas-options"));
    let directory = cache::directory().filter(|_| !asked);
    if let Some(machine_code) = directory.as_deref().and_then(|directory| cache::find(directory, &key)) {
        return Ok(CompiledProgram { arch: arch.into(), machine_code, log: String::new(), cached: true });
    }
    let (machine_code, log) = compiler.compile(program, arch)?;
    if let Some(directory) = &directory {
        cache::store(directory, &key, &machine_code);
    }
    Ok(CompiledProgram { arch: arch.into(), machine_code, log, cached: false })
}

/// All that the machine code depends on, each part with its length.
fn key(program: &Source<'_>, arch: &str, version: &str) -> Vec<u8> {
    let mut key = Vec::new();
    let mut part = |text: &str| {
        key.extend_from_slice(&(text.len() as u64).to_le_bytes());
        key.extend_from_slice(text.as_bytes());
    };
    for text in [version, arch, program.name, program.source] {
        part(text);
    }
    part(&program.options.len().to_string());
    program.options.iter().for_each(|option| part(option));
    program.headers.iter().for_each(|(name, text)| {
        part(name);
        part(text);
    });
    key
}

fn compiler() -> Result<&'static Compiler> {
    static COMPILER: OnceLock<std::result::Result<Compiler, String>> = OnceLock::new();
    match COMPILER.get_or_init(Compiler::load) {
        Ok(compiler) => Ok(compiler),
        Err(tried) => Err(Error::NoCompiler { tried: tried.clone() }),
    }
}

type CreateProgram = unsafe extern "C" fn(
    *mut nvrtcProgram,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> nvrtcResult;
type OnProgram<T> = unsafe extern "C" fn(nvrtcProgram, T) -> nvrtcResult;

/// The loaded library and the functions used of it. cudarc's own loader knows file names only, not folders.
struct Compiler {
    path: PathBuf,
    version: String,
    create: CreateProgram,
    destroy: unsafe extern "C" fn(*mut nvrtcProgram) -> nvrtcResult,
    compile: unsafe extern "C" fn(nvrtcProgram, c_int, *const *const c_char) -> nvrtcResult,
    log_size: OnProgram<*mut usize>,
    log: OnProgram<*mut c_char>,
    code_size: OnProgram<*mut usize>,
    code: OnProgram<*mut c_char>,
    error_text: unsafe extern "C" fn(nvrtcResult) -> *const c_char,
}

impl Compiler {
    /// The first that loads; else where was looked.
    fn load() -> std::result::Result<Self, String> {
        let mut tried = Vec::new();
        for path in candidates() {
            match Self::open(&path) {
                Ok(compiler) => return Ok(compiler),
                Err(why) => tried.push(format!("{} ({why})", path.display())),
            }
        }
        Err(tried.join(", "))
    }

    fn open(path: &Path) -> std::result::Result<Self, String> {
        // The compiler opens its built-ins by their bare name: loaded beforehand from beside it, they are found.
        if let Some(beside) = path.parent().filter(|folder| folder.is_absolute()) {
            for builtins in matching(beside, "libnvrtc-builtins.so.") {
                // SAFETY: a data library of the compiler's own.
                if let Ok(library) = unsafe { Library::open(Some(&builtins), RTLD_NOW | RTLD_GLOBAL) } {
                    std::mem::forget(library);
                }
            }
        }
        // SAFETY: the compiler's initializers are its own; the path is one of its well-known places, or the user's choice.
        let library =
            unsafe { Library::open(Some(path), RTLD_NOW) }.map_err(|error| short(&error.to_string()))?;
        let failed = |error: libloading::Error| short(&error.to_string());
        // SAFETY: the types are those of nvrtc.h, which have not changed since CUDA 11.1. The library is never unloaded.
        let compiler = unsafe {
            let (mut major, mut minor) = (0, 0);
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> nvrtcResult =
                *library.get(b"nvrtcVersion\0").map_err(failed)?;
            version(&mut major, &mut minor);
            Self {
                path: path.to_path_buf(),
                version: format!("{major}.{minor}"),
                create: *library.get(b"nvrtcCreateProgram\0").map_err(failed)?,
                destroy: *library.get(b"nvrtcDestroyProgram\0").map_err(failed)?,
                compile: *library.get(b"nvrtcCompileProgram\0").map_err(failed)?,
                log_size: *library.get(b"nvrtcGetProgramLogSize\0").map_err(failed)?,
                log: *library.get(b"nvrtcGetProgramLog\0").map_err(failed)?,
                code_size: *library.get(b"nvrtcGetCUBINSize\0").map_err(failed)?,
                code: *library.get(b"nvrtcGetCUBIN\0").map_err(failed)?,
                error_text: *library.get(b"nvrtcGetErrorString\0").map_err(failed)?,
            }
        };
        std::mem::forget(library);
        Ok(compiler)
    }

    fn compile(&self, program: &Source<'_>, arch: &str) -> Result<(Vec<u8>, String)> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| Error::invalid(program.name, "the source contains a zero byte"))
        };
        let strings = |texts: Vec<&str>| texts.into_iter().map(text).collect::<Result<Vec<_>>>();
        let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let (name, source) = (text(program.name)?, text(program.source)?);
        let header_names = strings(program.headers.iter().map(|(name, _)| *name).collect())?;
        let header_texts = strings(program.headers.iter().map(|(_, text)| *text).collect())?;
        let architecture = format!("--gpu-architecture={arch}");
        let mut options = vec![architecture.as_str(), "--std=c++17"];
        options.extend(program.options);
        let options = strings(options)?;

        let mut raw = std::ptr::null_mut();
        // SAFETY: strings and arrays live until the calls return; the program is destroyed by the guard.
        unsafe {
            self.check(
                "nvrtcCreateProgram",
                (self.create)(
                    &mut raw,
                    source.as_ptr(),
                    name.as_ptr(),
                    header_names.len() as c_int,
                    pointers(&header_texts).as_ptr(),
                    pointers(&header_names).as_ptr(),
                ),
            )?;
            let guard = Guard { compiler: self, raw };
            let answer = (self.compile)(raw, options.len() as c_int, pointers(&options).as_ptr());
            let log = self.read(guard.raw, self.log_size, self.log, "nvrtcGetProgramLog")?;
            let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n', ' ']).to_string();
            if answer == nvrtcResult::NVRTC_ERROR_COMPILATION {
                return Err(Error::DoesNotCompile { name: program.name.into(), arch: arch.into(), log });
            }
            self.check("nvrtcCompileProgram", answer)?;
            Ok((self.read(guard.raw, self.code_size, self.code, "nvrtcGetCUBIN")?, log))
        }
    }

    /// # Safety
    /// `size` and `get` belong together and to the live program `raw`.
    unsafe fn read(
        &self,
        raw: nvrtcProgram,
        size: OnProgram<*mut usize>,
        get: OnProgram<*mut c_char>,
        call: &'static str,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the caller's promise; the buffer is as long as the library asked.
        unsafe {
            self.check(call, size(raw, &mut bytes))?;
            let mut buffer = vec![0u8; bytes];
            if bytes > 0 {
                self.check(call, get(raw, buffer.as_mut_ptr().cast()))?;
            }
            Ok(buffer)
        }
    }

    fn check(&self, call: &'static str, answer: nvrtcResult) -> Result<()> {
        use nvrtcResult::*;
        if answer == NVRTC_SUCCESS {
            return Ok(());
        }
        // SAFETY: gives a static string for every number.
        let meaning = unsafe { CStr::from_ptr((self.error_text)(answer)) }.to_string_lossy().into_owned();
        let remedy = match answer {
            NVRTC_ERROR_INVALID_OPTION => {
                "an option or the architecture is unknown to this version: install nvidia-cuda-nvrtc==13.0.*"
            }
            NVRTC_ERROR_BUILTIN_OPERATION_FAILURE => {
                "its built-ins are missing: libnvrtc-builtins.so must lie beside libnvrtc.so"
            }
            NVRTC_ERROR_OUT_OF_MEMORY => "give it more memory",
            _ => "install another version of it, or set INLANE_NVRTC",
        };
        Err(Error::Compiler { version: self.version.clone(), call, meaning, remedy })
    }
}

struct Guard<'a> {
    compiler: &'a Compiler,
    raw: nvrtcProgram,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.compiler.destroy)(&mut self.raw) };
    }
}

fn short(why: &str) -> String {
    if why.contains("No such file") { "not there".into() } else { why.lines().next().unwrap_or("").into() }
}

/// Where it may be, in order. A path that the user set is the only one.
fn candidates() -> Vec<PathBuf> {
    if let Some(set) = std::env::var_os("INLANE_NVRTC") {
        return vec![set.into()];
    }
    // Major 13 only in the fixed folders: what a newer one makes may not load on the driver that is here.
    let mut found: Vec<PathBuf> =
        ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"].map(PathBuf::from).into();
    for site in site_packages() {
        for package in ["nvidia/cu13", "nvidia/cuda_nvrtc"] {
            found.extend(matching(&site.join(package).join("lib"), "libnvrtc.so."));
        }
    }
    for folder in
        ["/usr/local/cuda/lib64", "/usr/local/cuda-13.0/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"]
    {
        found.extend(matching(Path::new(folder), "libnvrtc.so."));
    }
    found
}

/// Python's package folders: of the active environment, of `PYTHONPATH`, the user's and the system's.
fn site_packages() -> Vec<PathBuf> {
    let mut sites: Vec<PathBuf> = Vec::new();
    if let Some(paths) = std::env::var_os("PYTHONPATH") {
        sites.extend(std::env::split_paths(&paths));
    }
    let mut roots: Vec<PathBuf> = Vec::new();
    roots.extend(std::env::var_os("VIRTUAL_ENV").map(PathBuf::from));
    roots.extend(std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local")));
    if let Some(paths) = std::env::var_os("PATH") {
        // A python3 on the path lies in ROOT/bin.
        let pythons = std::env::split_paths(&paths).filter(|folder| folder.join("python3").exists());
        roots.extend(pythons.filter_map(|folder| folder.parent().map(Path::to_path_buf)));
    }
    roots.extend(["/usr/local", "/usr"].map(PathBuf::from));
    for root in roots {
        for version in matching(&root.join("lib"), "python3") {
            sites.extend(["site-packages", "dist-packages"].map(|kind| version.join(kind)));
        }
    }
    sites
}

/// Entries of `folder` whose names begin with `prefix`, the last in order first.
fn matching(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.reverse();
    found
}
