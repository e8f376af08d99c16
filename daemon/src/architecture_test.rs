//! Who may import whom, and what may be written where; `ARCHITECTURE.md` says why.
//!
//! Reads the sources, so it holds for code that no other test reaches. A new part needs a row in [`PARTS`], a new edge
//! an entry in it; both are decisions, not chores. Test modules are free.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What every part above the model may use.
const COMMON: &[&str] = &["base", "error", "model", "config"];

/// A part (module path; the longest matching one counts) and what it may import beside itself.
struct Part(&'static str, &'static [&'static [&'static str]]);

const PARTS: &[Part] = &[
    // The binary sees the library's face only.
    Part("main", &[&["cli"]]),
    Part("allocator", &[]),
    Part(
        "cli",
        &[&[
            "Daemon",
            "Keys",
            "Survey",
            "rotate_key",
            "allocator",
            "audit",
            "config",
            "check",
            "error",
            "operation",
            "processes::guard",
            "telemetry",
        ]],
    ),
    Part(
        "lib",
        &[
            COMMON,
            &[
                "access",
                "api",
                "audit",
                "metrics",
                "operation",
                "handler",
                "calls",
                "registry",
                "mcp",
                "auth",
                "catalog",
                "inputs",
                "store",
                "tokens",
                "policy",
            ],
            &["processes", "systemd", "telemetry", "traces"],
        ],
    ),
    // The edges.
    Part(
        "api",
        &[
            COMMON,
            &[
                "access",
                "audit",
                "metrics",
                "operation",
                "calls",
                "registry",
                "catalog",
                "auth",
                "inputs",
                "store",
                "mcp::protocol",
                "tokens",
                "traces",
            ],
        ],
    ),
    Part(
        "handler",
        &[COMMON, &["registry", "catalog", "auth", "inputs", "store"]],
    ),
    // What the operator can ask and do.
    Part(
        "operation",
        &[COMMON, &["access", "registry", "systemd", "telemetry"]],
    ),
    // The middle.
    Part(
        "calls",
        &[
            COMMON,
            &[
                "audit", "metrics", "registry", "catalog", "mcp", "inputs", "store", "traces",
            ],
        ],
    ),
    Part(
        "registry",
        &[
            COMMON,
            &["mcp", "catalog", "auth", "inputs", "store", "policy"],
        ],
    ),
    // The catalog keeps what servers sent as it came: raw JSON and header rules are pure.
    Part(
        "catalog",
        &[COMMON, &["store", "json", "mcp::protocol", "mcp::headers"]],
    ),
    Part("tokens", &[COMMON, &["store"]]),
    Part("inputs", &[COMMON, &["store", "json"]]),
    Part("auth", &[COMMON, &["audit", "store", "policy"]]),
    // The protocol: the actor and its helpers above, the pure parts and the wire below.
    Part(
        "mcp",
        &[
            COMMON,
            &["inputs", "catalog", "store", "policy", "processes", "auth"],
        ],
    ),
    Part(
        "mcp::connection",
        &[COMMON, &["mcp", "auth", "inputs", "catalog", "store"]],
    ),
    Part(
        "mcp::transport",
        &[
            COMMON,
            &[
                "mcp::era",
                "mcp::headers",
                "mcp::protocol",
                "auth",
                "policy",
                "processes",
            ],
        ],
    ),
    Part("mcp::state", &[COMMON, &["mcp::protocol"]]),
    Part("mcp::era", &[COMMON, &["mcp::headers", "mcp::protocol"]]),
    Part("mcp::headers", &[COMMON, &["mcp::protocol"]]),
    Part("mcp::protocol", &[COMMON, &["json"]]),
    // The ground.
    Part("audit", &[COMMON]),
    Part("metrics", &[COMMON, &["store"]]),
    Part("store", &[&["base", "error", "model"]]),
    Part("access", &[COMMON]),
    Part("policy", &[COMMON]),
    Part("processes", &[&["base"]]),
    Part("config", &[&["base", "error", "model"]]),
    Part("model", &[&["base", "error"]]),
    Part("error", &[&["base"]]),
    Part("base", &[]),
    Part("json", &[]),
    Part("systemd", &[&["base", "error"]]),
    Part("telemetry", &[COMMON]),
    Part("traces", &[COMMON]),
];

/// A text, where it may be written (beginnings of paths below `src/`), and why nowhere else.
struct Confined(&'static str, &'static [&'static str], &'static str);

const CONFINED: &[Confined] = &[
    Confined(
        "mcp_sidecar_proto",
        &["api/"],
        "protobuf types stop at the edge",
    ),
    Confined("tonic::", &["api/", "lib.rs"], "gRPC stops at the edge"),
    Confined(
        "jsonschema::",
        &["catalog/output.rs"],
        "one place knows what a validation may cost",
    ),
    Confined(
        "rusqlite",
        &["store/", "store.rs"],
        "SQL lives in the store",
    ),
    Confined(
        "zbus",
        &["store/keyring.rs"],
        "one place knows the session bus",
    ),
    Confined(
        "reqwest::Client::",
        &["policy/", "policy.rs"],
        "every client asks the policy",
    ),
    Confined(
        "ClientBuilder",
        &["policy/", "policy.rs"],
        "every client asks the policy",
    ),
    Confined(
        "reqwest::get",
        &["policy/", "policy.rs"],
        "every client asks the policy",
    ),
    Confined(
        "oauth2::",
        &["auth/token"],
        "one place knows what is said at token endpoints",
    ),
    Confined(
        "prometheus_client::",
        &["metrics/"],
        "one place knows how figures are shown",
    ),
    Confined("jsonwebtoken::", &["auth/jose.rs"], "one place signs"),
    Confined(
        ".expose()",
        &[
            "store/",
            "store.rs",
            "mcp/transport",
            "auth/",
            "api/app_tokens.rs",
        ],
        "few places open a secret",
    ),
];

struct Source {
    /// Path below `src/`.
    path: String,
    /// For example `mcp::transport::http`.
    module: String,
    /// The code without comments and without test modules.
    code: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    let mut sources = Vec::new();
    for file in files {
        let path = file
            .strip_prefix(&root)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let stem = path.trim_end_matches(".rs");
        let name = stem.rsplit('/').next().unwrap();
        if name == "tests" || name.ends_with("_tests") || name.ends_with("_test") {
            continue;
        }
        let module = stem.trim_end_matches("/mod").replace('/', "::");
        let code = production_code(&std::fs::read_to_string(&file).unwrap());
        sources.push(Source { path, module, code });
    }
    sources
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Drops comment lines, and everything from the test module on: it is the last item of a file.
fn production_code(text: &str) -> String {
    let mut code = String::new();
    let mut test_follows = false;
    for line in text.lines() {
        if test_follows && line.starts_with("mod tests {") {
            break;
        }
        test_follows = line.trim() == "#[cfg(test)]";
        if !line.trim_start().starts_with("//") {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// Every path below `root` (for example `crate::`) in the code, groups resolved.
fn paths(code: &str, root: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (start, _) in code.match_indices(root) {
        let before = code[..start].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '$' | ':')) {
            continue;
        }
        tree(&code[start + root.len()..], "", &mut found);
    }
    found
}

/// Reads `a::b`, `a::{b, c::d}` and the like; returns what is left.
fn tree<'a>(text: &'a str, prefix: &str, found: &mut Vec<String>) -> &'a str {
    let mut text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        text = group;
        loop {
            text = tree(text, prefix, found).trim_start();
            match text.strip_prefix(',') {
                Some(rest) if !rest.trim_start().starts_with('}') => text = rest,
                Some(rest) => return rest.trim_start().strip_prefix('}').unwrap_or(rest),
                None => return text.strip_prefix('}').unwrap_or(text),
            }
        }
    }
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = match prefix {
        "" => name.to_owned(),
        prefix => format!("{prefix}::{name}"),
    };
    if let Some(rest) = rest.strip_prefix("::") {
        return tree(rest, &path, found);
    }
    found.push(path);
    // `as alias`, up to the next separator.
    rest.strip_prefix(" as ").map_or(rest, |alias| {
        alias.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_')
    })
}

/// What a source imports, as paths from the crate's root.
fn imports(source: &Source) -> BTreeSet<String> {
    let mut all: BTreeSet<String> = paths(&source.code, "crate::").into_iter().collect();
    all.extend(paths(&source.code, "mcp_sidecard::"));
    // `super` at the start of a line's item belongs to the file; deeper ones are inside inline modules.
    let own: Vec<&str> = source.module.split("::").collect();
    for line in source.code.split(';') {
        let statement = line.trim_start_matches(['\n', '\r']);
        let statement = statement.strip_prefix("pub ").unwrap_or(statement);
        let Some(mut rest) = statement.strip_prefix("use super::") else {
            continue;
        };
        let mut depth = own.len() - 1;
        while let Some(up) = rest.strip_prefix("super::") {
            rest = up;
            depth = depth.saturating_sub(1);
        }
        let base = own[..depth].join("::");
        let mut found = Vec::new();
        tree(rest, &base, &mut found);
        all.extend(found);
    }
    all
}

fn within(path: &str, part: &str) -> bool {
    path == part
        || path
            .strip_prefix(part)
            .is_some_and(|rest| rest.starts_with("::"))
}

fn part_of(path: &str) -> Option<&'static Part> {
    PARTS
        .iter()
        .filter(|part| within(path, part.0))
        .max_by_key(|part| part.0.len())
}

#[test]
fn imports_follow_the_table() {
    let mut wrong = String::new();
    for source in sources() {
        let Some(part) = part_of(&source.module) else {
            writeln!(wrong, "{}: no row in PARTS for this part", source.path).unwrap();
            continue;
        };
        for path in imports(&source) {
            let allowed = part.1.iter().copied().flatten();
            let mut allowed = allowed.copied().chain([part.0]);
            // A part may see its children even if they have rows of their own.
            if !allowed.any(|target| within(&path, target)) {
                writeln!(
                    wrong,
                    "{}: `{}` must not import `{path}`",
                    source.path, part.0
                )
                .unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn confined_texts_stay_where_they_belong() {
    let mut wrong = String::new();
    for source in sources() {
        for Confined(text, homes, why) in CONFINED {
            let at_home = homes.iter().any(|home| source.path.starts_with(home));
            if !at_home && source.code.contains(text) {
                writeln!(wrong, "{}: `{text}` must not be here: {why}", source.path).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn files_have_a_job_and_an_end() {
    let mut wrong = String::new();
    for source in sources() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("src")
            .join(&source.path);
        let text = std::fs::read_to_string(path).unwrap();
        if !text.starts_with("//! ") {
            writeln!(wrong, "{}: does not open with its job", source.path).unwrap();
        }
        let lines = source.code.lines().count();
        if lines > 800 {
            writeln!(wrong, "{}: {lines} lines of code; split it", source.path).unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn the_reader_understands_imports() {
    let source = |module: &str, code: &str| Source {
        path: String::new(),
        module: module.to_owned(),
        code: production_code(code),
    };
    let check = |module: &str, code: &str, expected: &[&str]| {
        let found: Vec<_> = imports(&source(module, code)).into_iter().collect();
        assert_eq!(found, expected, "{code}");
    };
    check(
        "a",
        "use crate::b::c;\nfn f() -> crate::d::E {}",
        &["b::c", "d::E"],
    );
    check(
        "a",
        "use crate::{b, c::{d as e, f}, g::H,};",
        &["b", "c::d", "c::f", "g::H"],
    );
    check(
        "a",
        "use crate::b::{\n    c,\n    d::{E, F},\n};\n",
        &["b::c", "b::d::E", "b::d::F"],
    );
    check("a::b", "use super::c::D;", &["a::c::D"]);
    check(
        "a::b::c",
        "use std::fmt;\nuse super::super::d::{E, F};",
        &["a::d::E", "a::d::F"],
    );
    check(
        "a",
        "// use crate::b;\n/// [`crate::c`]\nuse $crate::d;",
        &[],
    );
    check(
        "a",
        "use crate::b;\n#[cfg(test)]\nmod tests {\n    use crate::c;\n}",
        &["b"],
    );
    assert!(part_of("mcp::transport::http").is_some_and(|part| part.0 == "mcp::transport"));
}
