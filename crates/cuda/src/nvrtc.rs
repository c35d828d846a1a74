//! NVRTC, CUDA's run-time compiler: finds and loads the library, compiles, and caches the results.
//!
//! The library is searched in this order:
//! 1. the file named by `INLANE_NVRTC`, and no other if it is set
//! 2. the dynamic loader's paths
//! 3. NVIDIA's wheels in Python's site-packages
//! 4. `/usr/local/cuda` and `/usr/local/cuda-13.0`
//!
//! Kernels are compiled to machine code, because an older driver cannot load a newer compiler's PTX.
//!
//! # Privileges
//!
//! The library is code that the user chooses. Only [`compile`] and [`compiler_version`] load it. So a process
//! with privileges drops them before these calls. If the library's files may be unreadable afterwards, call
//! [`locate_compiler`] before dropping privileges. It opens the files but runs none of their code.

use crate::error::{Error, Result};
use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use inlane_process::code_cache::{self, CodeCache};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// CUDA C++ source with the headers it includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source<'a> {
    /// The name that the compiler's messages show, for example `my.cu`.
    pub name: &'a str,
    /// The CUDA C++ text.
    pub source: &'a str,
    /// The headers. For each header: the name by which sources include it, and its text.
    pub headers: &'a [(&'a str, &'a str)],
    /// Compiler options other than the architecture, for example `-DBURST=16` or `-lineinfo`.
    pub options: &'a [&'a str],
}

/// Machine code for one GPU architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledProgram {
    arch: String,
    machine_code: Vec<u8>,
    log: String,
    cached: bool,
}

impl CompiledProgram {
    /// Returns the architecture, for example `sm_90`.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// Returns the ELF image that the driver loads.
    pub fn machine_code(&self) -> &[u8] {
        &self.machine_code
    }

    /// Returns the compiler's warnings. Empty if the code came from the cache.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// Returns true if the code came from the cache.
    pub fn is_cached(&self) -> bool {
        self.cached
    }
}

/// Loads the compiler. Returns its version and the file it was loaded from.
///
/// # Errors
/// [`Error::NoCompiler`] if no library could be loaded.
pub fn compiler_version() -> Result<(String, PathBuf)> {
    let compiler = compiler()?;
    Ok((compiler.version.clone(), compiler.path.clone()))
}

/// Opens the compiler's library files. They can then be loaded later, even if their directory has become
/// unreadable. Does not run their code. Call this before dropping privileges. Does not open libraries that
/// only the dynamic loader can find.
pub fn locate_compiler() {
    LOCATED.get_or_init(locate);
}

/// Compiles `source` for `arch`, an architecture in the form of [`crate::DeviceInfo::arch`]. Uses the cache.
/// If an option asks the assembler for output (`--ptxas-options=-v`), compiles without the cache, because
/// that output is not cached.
///
/// # Errors
/// [`Error::DoesNotCompile`] with the compiler's messages. [`Error::NoCompiler`] if there is no compiler.
/// [`Error::Compiler`] if the compiler does not know the architecture or an option.
pub fn compile(source: &Source<'_>, arch: &str) -> Result<CompiledProgram> {
    let compiler = compiler()?;
    let key = key(source, arch, &compiler.version);
    let wants_output = source.options.iter().any(|option| option.starts_with("--ptxas-options"));
    let cache = if wants_output { Ok(None) } else { CodeCache::open("kernels") };
    let cache = cache.inspect_err(|error| not_cached(error)).ok().flatten();
    if let Some(machine_code) = cache.as_ref().and_then(|cache| cache.read(&key)) {
        return Ok(CompiledProgram { arch: arch.into(), machine_code, log: String::new(), cached: true });
    }
    let (machine_code, log) = compiler.compile(source, arch)?;
    if let Some(cache) = &cache {
        let entry = cache.insert(&key);
        if let Err(error) = std::fs::write(entry.path(), &machine_code).and_then(|()| entry.commit()) {
            not_cached(&format_args!("{}: {error}", cache.directory().display()));
        }
    }
    Ok(CompiledProgram { arch: arch.into(), machine_code, log, cached: false })
}

/// Warns, once per process, that kernels are not cached. Each run then compiles them again.
fn not_cached(why: &dyn std::fmt::Display) {
    static WARNED: std::sync::Once = std::sync::Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "kernels are not cached: {why}; set INLANE_CACHE to a directory that the run's user may write"
        );
    });
}

/// Returns the cache key: everything that the machine code depends on.
fn key(source: &Source<'_>, arch: &str, version: &str) -> Vec<u8> {
    let count = source.options.len().to_string();
    let headers = source.headers.iter().flat_map(|(name, text)| [*name, *text]);
    let fixed = [version, arch, source.name, source.source, &count];
    code_cache::key(fixed.into_iter().chain(source.options.iter().copied()).chain(headers))
}

fn compiler() -> Result<&'static Compiler> {
    static COMPILER: OnceLock<std::result::Result<Compiler, String>> = OnceLock::new();
    match COMPILER.get_or_init(Compiler::load) {
        Ok(compiler) => Ok(compiler),
        Err(tried) => Err(Error::NoCompiler { tried: tried.clone() }),
    }
}

/// A library file that the search has found, with the open files for loading it later.
struct Located {
    path: PathBuf,
    /// The open file of the library. `None` if `path` is a bare name, for which the dynamic loader searches,
    /// or if the file cannot be opened.
    file: Option<File>,
    /// The open files `libnvrtc-builtins.so.*` in the library's directory. They must be loaded before the
    /// library.
    builtins: Vec<File>,
}

/// The NVRTC libraries to try, in order. They are searched once per process. The files that could be opened
/// stay open.
static LOCATED: OnceLock<Vec<Located>> = OnceLock::new();

fn locate() -> Vec<Located> {
    let locate = |path: PathBuf| {
        let directory = path.parent().filter(|directory| directory.is_absolute());
        let builtins =
            directory.map(|directory| matching(directory, "libnvrtc-builtins.so.")).unwrap_or_default();
        let file = if path.components().count() > 1 { File::open(&path).ok() } else { None };
        Located { file, builtins: builtins.iter().flat_map(File::open).collect(), path }
    };
    candidates().into_iter().map(locate).collect()
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

/// The functions of the loaded library. They replace cudarc's own loader, which cannot load a library by its
/// path.
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
    /// Loads the first NVRTC library that can be loaded. If there is none, returns what was tried, as text.
    fn load() -> std::result::Result<Self, String> {
        // Environment variables select the library. If the program's file has capabilities (setcap), any user
        // could name a library, and run code with these capabilities. So a process with capabilities loads no
        // library, unless it runs as root.
        let root = rustix::process::geteuid().is_root();
        if !root && rustix::thread::capabilities(None).is_ok_and(|sets| !sets.permitted.is_empty()) {
            let why =
                "none, because this process holds capabilities and the user's environment names the library";
            return Err(format!("{why}; remove them from the program's file (setcap -r)"));
        }
        let mut tried = Vec::new();
        for located in LOCATED.get_or_init(locate) {
            match Self::open(located) {
                Ok(compiler) => return Ok(compiler),
                Err(why) => tried.push(format!("{} ({why})", located.path.display())),
            }
        }
        let named = std::env::var_os("INLANE_NVRTC")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute() && !path.exists());
        match named {
            Some(path) => Err(format!(
                "{}, which INLANE_NVRTC names and which does not exist (unset or correct it)",
                path.display()
            )),
            None => Err(tried.join(", ")),
        }
    }

    fn open(located: &Located) -> std::result::Result<Self, String> {
        let by_descriptor = |file: &File| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        // Load NVRTC's built-ins first. NVRTC loads them by their bare name, and the loader finds that name
        // only if the built-ins are already loaded.
        for builtins in &located.builtins {
            let path = by_descriptor(builtins);
            // SAFETY: this is NVRTC's built-ins library, whose initializers have no requirements.
            let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
            if let Ok(library) = library {
                std::mem::forget(library);
            }
        }
        let path = located.file.as_ref().map_or_else(|| located.path.clone(), by_descriptor);
        // SAFETY: the library is the compiler, from a well-known folder or chosen by the user. The user may
        // run any code in this process.
        let library =
            unsafe { Library::open(Some(path), RTLD_NOW) }.map_err(|error| short(&error.to_string()))?;
        let failed = |error: libloading::Error| short(&error.to_string());
        // SAFETY: the types are those of nvrtc.h since CUDA 11.1. The library is never unloaded.
        let compiler = unsafe {
            let (mut major, mut minor) = (0, 0);
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> nvrtcResult =
                *library.get(b"nvrtcVersion\0").map_err(failed)?;
            version(&mut major, &mut minor);
            Self {
                path: located.path.clone(),
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

    fn compile(&self, source: &Source<'_>, arch: &str) -> Result<(Vec<u8>, String)> {
        let text = |text: &str| {
            CString::new(text)
                .map_err(|_| Error::invalid(source.name, "the source contains a zero byte; remove it"))
        };
        let strings = |texts: Vec<&str>| texts.into_iter().map(text).collect::<Result<Vec<_>>>();
        let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let (name, body) = (text(source.name)?, text(source.source)?);
        let header_names = strings(source.headers.iter().map(|(name, _)| *name).collect())?;
        let header_texts = strings(source.headers.iter().map(|(_, text)| *text).collect())?;
        let architecture = format!("--gpu-architecture={arch}");
        let mut options = vec![architecture.as_str(), "--std=c++17"];
        options.extend(source.options);
        let options = strings(options)?;

        let mut raw = std::ptr::null_mut();
        // SAFETY: strings and arrays outlive the calls; the guard destroys the program once.
        unsafe {
            self.check(
                "nvrtcCreateProgram",
                (self.create)(
                    &mut raw,
                    body.as_ptr(),
                    name.as_ptr(),
                    header_names.len() as c_int,
                    pointers(&header_texts).as_ptr(),
                    pointers(&header_names).as_ptr(),
                ),
            )?;
            let guard = ProgramGuard { compiler: self, raw };
            let answer = (self.compile)(raw, options.len() as c_int, pointers(&options).as_ptr());
            let log = self.read(guard.raw, self.log_size, self.log, "nvrtcGetProgramLog")?;
            let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n', ' ']).to_string();
            if answer == nvrtcResult::NVRTC_ERROR_COMPILATION {
                return Err(Error::DoesNotCompile { name: source.name.into(), arch: arch.into(), log });
            }
            self.check("nvrtcCompileProgram", answer)?;
            Ok((self.read(guard.raw, self.code_size, self.code, "nvrtcGetCUBIN")?, log))
        }
    }

    /// Reads one result of an NVRTC program, such as its log or its machine code. `size` is the NVRTC
    /// function that returns the length of this result. `get` is the NVRTC function that copies it.
    ///
    /// # Safety
    /// `raw` is a live program, and `size` and `get` are a matching pair of NVRTC functions.
    unsafe fn read(
        &self,
        raw: nvrtcProgram,
        size: OnProgram<*mut usize>,
        get: OnProgram<*mut c_char>,
        call: &'static str,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the caller promises a live program and matching functions. The buffer has the length that
        // `size` gave.
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
        // SAFETY: NVRTC returns a static string for every number.
        let meaning = unsafe { CStr::from_ptr((self.error_text)(answer)) }.to_string_lossy().into_owned();
        let remedy = match answer {
            NVRTC_ERROR_INVALID_OPTION => {
                "this version does not know an option or the architecture; install nvidia-cuda-nvrtc==13.0.*"
            }
            NVRTC_ERROR_BUILTIN_OPERATION_FAILURE => {
                "its built-ins are missing; put libnvrtc-builtins.so beside libnvrtc.so"
            }
            NVRTC_ERROR_OUT_OF_MEMORY => "free some host memory",
            _ => "install another version, or name one in INLANE_NVRTC",
        };
        Err(Error::Compiler { version: self.version.clone(), call, meaning, remedy })
    }
}

/// Destroys an NVRTC program when dropped.
struct ProgramGuard<'a> {
    compiler: &'a Compiler,
    raw: nvrtcProgram,
}

impl Drop for ProgramGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is created once and destroyed once.
        unsafe { (self.compiler.destroy)(&mut self.raw) };
    }
}

/// Returns the first line of the dynamic loader's error message.
fn short(why: &str) -> String {
    if why.contains("No such file") { "not found".into() } else { why.lines().next().unwrap_or("").into() }
}

/// Returns the paths of NVRTC libraries to try, in order.
fn candidates() -> Vec<PathBuf> {
    if let Some(set) = std::env::var_os("INLANE_NVRTC") {
        return vec![set.into()];
    }
    // List the bare names first. The dynamic loader searches for these. Then add the files in Python's
    // packages and in the CUDA toolkit.
    let mut found: Vec<PathBuf> =
        ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"].map(PathBuf::from).into();
    for site in site_packages() {
        for package in ["nvidia/cu13", "nvidia/cuda_nvrtc"] {
            found.extend(matching(&site.join(package).join("lib"), "libnvrtc.so."));
        }
    }
    for directory in
        ["/usr/local/cuda/lib64", "/usr/local/cuda-13.0/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"]
    {
        found.extend(matching(Path::new(directory), "libnvrtc.so."));
    }
    found
}

/// Returns Python's package directories. They come from `PYTHONPATH`, the active virtual environment, the
/// user and the system.
fn site_packages() -> Vec<PathBuf> {
    let mut sites: Vec<PathBuf> = Vec::new();
    if let Some(paths) = std::env::var_os("PYTHONPATH") {
        sites.extend(std::env::split_paths(&paths));
    }
    let mut roots: Vec<PathBuf> = Vec::new();
    roots.extend(std::env::var_os("VIRTUAL_ENV").map(PathBuf::from));
    roots.extend(std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local")));
    if let Some(paths) = std::env::var_os("PATH") {
        // Python packages may include NVRTC. If a directory ROOT/bin contains python3, its packages are in
        // ROOT/lib. So search `PATH` for such directories.
        let pythons = std::env::split_paths(&paths).filter(|directory| directory.join("python3").exists());
        roots.extend(pythons.filter_map(|directory| directory.parent().map(Path::to_path_buf)));
    }
    roots.extend(["/usr/local", "/usr"].map(PathBuf::from));
    for root in roots {
        for version in matching(&root.join("lib"), "python3") {
            sites.extend(["site-packages", "dist-packages"].map(|kind| version.join(kind)));
        }
    }
    sites
}

/// Returns the entries of `directory` whose names begin with `prefix`, in descending order of name.
fn matching(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.reverse();
    found
}
