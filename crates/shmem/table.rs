//! Reads `functions.txt`, and generates the exported functions, the headers and the list of names.
//!
//! The build script and the test `header` share this file. [`exports`] generates Rust code for the build
//! script. [`prototypes`] and [`generics`] generate the headers, which are checked in because programs
//! include them.

use std::fmt::Write;

/// A C type of the exported functions.
#[derive(Clone, Copy)]
pub struct Type {
    /// OpenSHMEM's TYPENAME: how function names spell the type, such as `uint` in `shmem_uint_put`.
    pub name: &'static str,
    /// The name of the type in the C header, such as `unsigned int`.
    pub c: &'static str,
    /// The C type behind a typedef such as `int8_t`. Equal to `c` if the type is no typedef. Type-generic
    /// macros select functions by this type.
    pub canonical: &'static str,
    /// The Rust type.
    pub rust: &'static str,
    /// The size in bytes.
    pub size: usize,
}

const fn of(name: &'static str, c: &'static str, rust: &'static str, size: usize) -> Type {
    Type { name, c, canonical: c, rust, size }
}

const fn alias(
    name: &'static str,
    c: &'static str,
    canonical: &'static str,
    rust: &'static str,
    size: usize,
) -> Type {
    Type { name, c, canonical, rust, size }
}

/// All types, for the data model of 64-bit Linux (LP64).
const TYPES: &[Type] = &[
    of("float", "float", "f32", 4),
    of("double", "double", "f64", 8),
    of("longdouble", "long double", "LongDouble", 16),
    of("char", "char", "std::ffi::c_char", 1),
    of("schar", "signed char", "i8", 1),
    of("short", "short", "i16", 2),
    of("int", "int", "i32", 4),
    of("long", "long", "i64", 8),
    of("longlong", "long long", "i64", 8),
    of("uchar", "unsigned char", "u8", 1),
    of("ushort", "unsigned short", "u16", 2),
    of("uint", "unsigned int", "u32", 4),
    of("ulong", "unsigned long", "u64", 8),
    of("ulonglong", "unsigned long long", "u64", 8),
    alias("int8", "int8_t", "signed char", "i8", 1),
    alias("int16", "int16_t", "short", "i16", 2),
    alias("int32", "int32_t", "int", "i32", 4),
    alias("int64", "int64_t", "long", "i64", 8),
    alias("uint8", "uint8_t", "unsigned char", "u8", 1),
    alias("uint16", "uint16_t", "unsigned short", "u16", 2),
    alias("uint32", "uint32_t", "unsigned int", "u32", 4),
    alias("uint64", "uint64_t", "unsigned long", "u64", 8),
    alias("size", "size_t", "unsigned long", "usize", 8),
    alias("ptrdiff", "ptrdiff_t", "long", "isize", 8),
    of("complexf", "INLANE_SHMEM_COMPLEX(float)", "Complex<f32>", 8),
    of("complexd", "INLANE_SHMEM_COMPLEX(double)", "Complex<f64>", 16),
];

const REALS: &str = "float double longdouble ";
const CHARS: &str = "char schar ";
const SHORT_TO_LONGLONG: &str = "short int long longlong ";
const AMO: &str = "int long longlong uint ulong ulonglong int32 int64 uint32 uint64 size ptrdiff ";
const FIXED: &str = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 ";
const UNSIGNED: &str = "uchar ushort uint ulong ulonglong ";

/// Returns the types of a set. `set` is a name from `functions.txt`, such as `logic`.
fn types(set: &str) -> Vec<Type> {
    let bits = |widths: &[(&'static str, usize)]| -> Vec<Type> {
        widths.iter().map(|(name, size)| of(name, "void", "c_void", *size)).collect()
    };
    let names = match set {
        "one" => return vec![of("", "void", "c_void", 1)],
        "bits" => return bits(&[("8", 1), ("16", 2), ("32", 4), ("64", 8), ("128", 16)]),
        "bits_active" => return bits(&[("32", 4), ("64", 8)]),
        "longdouble" => set.to_string(),
        "rma" => [REALS, CHARS, SHORT_TO_LONGLONG, UNSIGNED, FIXED, "size ptrdiff"].concat(),
        "rma_scalar" => ["float double ", CHARS, SHORT_TO_LONGLONG, UNSIGNED, FIXED, "size ptrdiff"].concat(),
        "amo" => AMO.to_string(),
        "ext" => ["float double ", AMO].concat(),
        "bitwise" => "uint ulong ulonglong int32 int64 uint32 uint64".to_string(),
        "sync" => ["short ushort ", AMO].concat(),
        // For reductions over teams, the specification lists only the unsigned and the fixed-width types. The
        // table adds the signed types because reductions over active sets have them.
        "logic" => [SHORT_TO_LONGLONG, UNSIGNED, FIXED, "size"].concat(),
        "order" => [REALS, CHARS, SHORT_TO_LONGLONG, UNSIGNED, FIXED, "size ptrdiff"].concat(),
        "sum" => {
            [REALS, CHARS, SHORT_TO_LONGLONG, UNSIGNED, FIXED, "size ptrdiff complexd complexf"].concat()
        }
        "short_to_longlong" => SHORT_TO_LONGLONG.to_string(),
        "order_active" => [SHORT_TO_LONGLONG, REALS].concat(),
        "sum_active" => [SHORT_TO_LONGLONG, REALS, "complexf complexd"].concat(),
        "amo_deprecated" => "int long longlong".to_string(),
        "ext_deprecated" => "float double int long longlong".to_string(),
        _ => panic!("functions.txt: no set of types is called '{set}'"),
    };
    let find = |name: &str| TYPES.iter().find(|found| found.name == name).copied();
    names.split_whitespace().map(|name| find(name).expect("a set has types of TYPES")).collect()
}

/// A parameter of a function: its name, and its C type. If the type was the placeholder TYPE, the function's
/// type has replaced it.
#[derive(Clone)]
pub struct Parameter {
    pub c: String,
    pub name: String,
}

/// One exported function, without the profiling name.
pub struct Function {
    pub name: String,
    pub result: String,
    pub parameters: Vec<Parameter>,
    pub variadic: bool,
    pub kind: Type,
    /// The Rust expression that implements the function; empty if the function is implemented in C.
    pub body: String,
    /// The name of the type-generic macro, and the index of the argument whose type selects the function. The
    /// index does not count the context.
    pub generic: Option<(String, usize)>,
    pub has_context: bool,
}

/// A heading of the table and the functions below it.
pub struct Section {
    pub heading: String,
    pub functions: Vec<Function>,
}

/// Reads the table.
pub fn read(table: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(heading) = line.strip_prefix("== ") {
            sections.push(Section { heading: heading.to_string(), functions: Vec::new() });
            continue;
        }
        let fields: Vec<&str> = line.splitn(4, '|').map(str::trim).collect();
        let [set, flags, prototype, body] = fields[..] else {
            panic!("functions.txt: not four fields: {line}")
        };
        let section = sections.last_mut().expect("the table starts with a heading");
        for kind in types(set) {
            section.functions.push(function(flags, prototype, body, kind, false));
            if flags.split(' ').any(|flag| flag == "ctx") {
                section.functions.push(function(flags, prototype, body, kind, true));
            }
        }
    }
    sections
}

/// Splits `type name`, such as `const int *status`, into the type and the name.
fn declarator(text: &str) -> (String, String) {
    let text = text.trim();
    let at = text.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |at| at + 1);
    (text[..at].trim().to_string(), text[at..].to_string())
}

fn function(flags: &str, prototype: &str, body: &str, kind: Type, has_context: bool) -> Function {
    let (head, list) = prototype.split_once('(').expect("a prototype has parameters");
    let (result, template) = declarator(head);
    let list = list.trim_end_matches(')');
    let mut parameters: Vec<Parameter> = list
        .split(',')
        .map(str::trim)
        .filter(|one| *one != "void" && *one != "...")
        .map(|one| {
            let (c, name) = declarator(one);
            Parameter { c: c.replace("TYPE", kind.c), name }
        })
        .collect();
    let with_context = |name: &str| name.replacen("shmem_", "shmem_ctx_", 1);
    let mut name = template.replace("NAME", kind.name);
    if has_context {
        name = with_context(&name);
        parameters.insert(0, Parameter { c: "shmem_ctx_t".into(), name: "ctx".into() });
    }
    let pe = if has_context { "contexts::remote(ctx, pe)" } else { "contexts::default(pe)" };
    let body = body
        .replace("TYPE", kind.rust)
        .replace("SIZE", &kind.size.to_string())
        .replace("PE)", &format!("{pe})"));
    let index =
        flags.split(' ').find_map(|flag| flag.strip_prefix('g')).map(|index| index.parse().expect("gN"));
    Function {
        name,
        result: result.replace("TYPE", kind.c),
        parameters,
        variadic: list.contains("..."),
        kind,
        body,
        generic: index.map(|index| (template.replacen("_NAME", "", 1), index)),
        has_context,
    }
}

/// Returns the Rust type of a C type, for the parameters and results of an exported function.
fn rust(c: &str, kind: &Type) -> String {
    let c = c.replace("volatile ", "");
    if let Some(target) = c.strip_suffix('*') {
        let target = target.trim();
        return match target.strip_prefix("const ") {
            Some(target) => format!("*const {}", rust(target, kind)),
            None => format!("*mut {}", rust(target, kind)),
        };
    }
    match c.strip_prefix("const ").unwrap_or(&c) {
        "void" => "c_void".into(),
        "int" => "c_int".into(),
        "long" => "i64".into(),
        "char" => "std::ffi::c_char".into(),
        "size_t" => "usize".into(),
        "ptrdiff_t" => "isize".into(),
        "uint64_t" => "u64".into(),
        "shmem_ctx_t" => "Context".into(),
        "shmem_team_t" => "Team".into(),
        "shmem_team_config_t" => "TeamConfig".into(),
        "shmem_ctx_session_config_t" => "SessionConfig".into(),
        other if other == kind.c => kind.rust.into(),
        other => panic!("functions.txt: unknown type '{other}'"),
    }
}

/// Returns the Rust source of all exported functions: each name and its profiling name `pshmem_...`.
pub fn exports(sections: &[Section]) -> String {
    let mut out = String::new();
    for function in sections.iter().flat_map(|section| &section.functions) {
        for name in [function.name.clone(), profiling_name(&function.name)] {
            if function.body.is_empty() {
                // Emit a bare jump to the C function. It leaves the arguments in place, whatever registers
                // they use.
                let target = format!("inlane_{}", function.name);
                writeln!(out, "#[unsafe(no_mangle)] #[unsafe(naked)] pub unsafe extern \"C\" fn {name}() {{ jump!({target}) }}").unwrap();
                continue;
            }
            let one = |one: &Parameter| format!("{}: {}", one.name, rust(&one.c, &function.kind));
            let parameters: Vec<String> = function.parameters.iter().map(one).collect();
            let result = match function.result.as_str() {
                "void" => String::new(),
                other => format!(" -> {}", rust(other, &function.kind)),
            };
            // SAFETY of the emitted block: the called functions require only what the OpenSHMEM specification
            // requires of the C caller.
            writeln!(
                out,
                "#[unsafe(no_mangle)] pub unsafe extern \"C\" fn {name}({}){result} {{ unsafe {{ {} }} }}",
                parameters.join(", "),
                function.body
            )
            .unwrap();
        }
    }
    out
}

/// Returns the profiling name of a function.
pub fn profiling_name(name: &str) -> String {
    format!("p{name}")
}

fn declaration(function: &Function, name: &str) -> String {
    let space = |c: &str| if c.ends_with('*') { "" } else { " " };
    let mut parameters: Vec<String> =
        function.parameters.iter().map(|one| format!("{}{}{}", one.c, space(&one.c), one.name)).collect();
    if function.variadic {
        parameters.push("...".into());
    }
    if parameters.is_empty() {
        parameters.push("void".into());
    }
    format!("{}{}{name}({})", function.result, space(&function.result), parameters.join(", "))
}

const NOTICE: &str =
    "/* Made from crates/shmem/functions.txt. Do not edit; see crates/shmem/tests/header.rs. */\n";

/// Returns a header with the prototypes of all functions, under their profiling names if `profiling` is set.
pub fn prototypes(sections: &[Section], profiling: bool) -> String {
    let mut out = NOTICE.to_string();
    for section in sections {
        writeln!(out, "\n/* {} */", section.heading).unwrap();
        for function in &section.functions {
            let name = if profiling { profiling_name(&function.name) } else { function.name.clone() };
            writeln!(out, "{};", declaration(function, &name)).unwrap();
        }
    }
    out
}

/// Returns the pointer types for which a type-generic macro (C11) selects the function for elements of type
/// `kind`. This is the plain pointer. For a const or volatile parameter, it is also the pointer with that
/// qualifier.
fn selectors(parameter: &Parameter, kind: &Type) -> Vec<String> {
    let mut pointers = vec![format!("{} *", kind.canonical)];
    for qualifier in ["const", "volatile"] {
        if parameter.c.contains(&format!("{qualifier} ")) {
            pointers.push(format!("{qualifier} {} *", kind.canonical));
        }
    }
    pointers
}

/// Returns the type-generic macros (C11) and overloads (C++).
pub fn generics(sections: &[Section]) -> String {
    let all: Vec<&Function> = sections.iter().flat_map(|section| &section.functions).collect();
    let mut names: Vec<&(String, usize)> = Vec::new();
    for generic in all.iter().filter_map(|function| function.generic.as_ref()) {
        if !names.contains(&generic) {
            names.push(generic);
        }
    }
    let mut macros = String::new();
    let mut overloads = String::new();
    for (name, index) in names {
        let mut entries = [Vec::new(), Vec::new()];
        let mut seen = [Vec::new(), Vec::new()];
        for function in all.iter().filter(|one| one.generic.as_ref().is_some_and(|(found, _)| found == name))
        {
            let context = function.has_context as usize;
            if seen[context].contains(&function.kind.canonical) {
                continue;
            }
            seen[context].push(function.kind.canonical);
            for pointer in selectors(&function.parameters[index + context], &function.kind) {
                entries[context].push(format!("{pointer}: {}", function.name));
            }
            // For `long`, C may already have a deprecated function of this name and with the same parameters.
            // That function serves as the overload, so write no second one.
            let exists = all.iter().any(|one| one.name == *name) && function.kind.name == "long";
            if !exists {
                let arguments: Vec<&str> = function.parameters.iter().map(|one| one.name.as_str()).collect();
                writeln!(
                    overloads,
                    "static inline {} {{ return {}({}); }}",
                    declaration(function, name),
                    function.name,
                    arguments.join(", ")
                )
                .unwrap();
            }
        }
        let [plain, context] = entries;
        let join = |entries: &[String]| entries.join(", \\\n        ");
        let with_context = match context.is_empty() {
            true => String::new(),
            false => format!(
                "shmem_ctx_t: _Generic(INLANE_SHMEM_ARGUMENT_{}(__VA_ARGS__, 0, 0), \\\n        {}, \\\n        default: inlane_shmem_no_such_type), \\\n        ",
                index + 1,
                join(&context)
            ),
        };
        writeln!(
            macros,
            "#define {name}(...) \\\n    _Generic(INLANE_SHMEM_ARGUMENT_{index}(__VA_ARGS__, 0, 0), \\\n        {with_context}{}, \\\n        default: inlane_shmem_no_such_type)(__VA_ARGS__)",
            join(&plain)
        )
        .unwrap();
    }
    format!(
        "{NOTICE}
#ifdef __cplusplus

{overloads}
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L

/* Selected for a type that OpenSHMEM does not define for the operation. The call then does not compile. */
void inlane_shmem_no_such_type(void);
#define INLANE_SHMEM_ARGUMENT_0(a, ...) (a)
#define INLANE_SHMEM_ARGUMENT_1(a, b, ...) (b)

{macros}
#endif
"
    )
}
