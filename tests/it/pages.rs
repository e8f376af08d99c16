//! Every block of commands, code or configuration in the pages of the project is run or checked by a story, which is named here; a
//! new block wants a new one. And what several files pin at the same version is pinned at the same version.

use std::path::Path;

use mcp_sidecar_tests::package::CARGO_DEB_ARGUMENTS;
use mcp_sidecar_tests::peers::install::SETS;
use mcp_sidecar_tests::peers::programs::{blocks, fenced};
use mcp_sidecar_tests::process::workspace_dir;

/// Who runs the blocks of a page: those below a heading (empty: any), in a language, how many there are, and the story.
type Claim = (&'static str, &'static str, usize, &'static str);

const PAGES: &[(&str, &[Claim])] = &[
    (
        "README.md",
        &[
            (
                "Five minutes",
                "sh",
                2,
                "readme::its_quickstart_runs_and_leaves_what_the_examples_want",
            ),
            (
                "Running the daemon",
                "sh",
                1,
                "readme::its_daemon_runs_as_a_normal_user_without_any_configuration",
            ),
            (
                "Talking to it with grpcurl",
                "sh",
                1,
                "grpcurl::the_readme_is_right_about_grpcurl",
            ),
            (
                "Calls that outlive their caller",
                "sh",
                1,
                "grpcurl::the_readme_is_right_about_calls_that_outlive_their_caller",
            ),
            (
                "Signing in at protected servers",
                "sh",
                1,
                "grpcurl::the_readme_is_right_about_signing_in",
            ),
            (
                "Rust",
                "rust,no_run",
                1,
                "readme::its_way_in_rust_and_the_page_of_the_rust_client_work",
            ),
            ("Python", "sh", 1, "readme::its_way_in_python_works"),
            ("Python", "python", 1, "readme::its_way_in_python_works"),
            ("Node.js", "sh", 1, "readme::its_way_in_node_works"),
            ("Node.js", "js", 1, "readme::its_way_in_node_works"),
            ("Go", "sh", 1, "readme::its_way_in_go_works"),
            ("Go", "go", 1, "readme::its_way_in_go_works"),
            ("Java", "java", 1, "readme::its_way_in_java_works"),
            (
                "If a client cannot reach the socket",
                "toml",
                1,
                "tcp::what_the_readme_says_of_it_is_so",
            ),
            (
                "If a client cannot reach the socket",
                "sh",
                1,
                "tcp::what_the_readme_says_of_it_is_so",
            ),
            (
                "Secrets at rest",
                "sh",
                1,
                "readme::its_way_to_a_new_key_works",
            ),
            ("Tests", "sh", 3, "readme::its_ways_to_test_exist"),
        ],
    ),
    (
        "docs/cli.md",
        &[("", "sh", 11, "cli::docs::every_command_of_the_page_works")],
    ),
    (
        "docs/java.md",
        &[
            ("", "xml", 1, "interop::the_guide_for_java_is_right"),
            ("", "java", 1, "interop::the_guide_for_java_is_right"),
        ],
    ),
    (
        "docs/metrics.md",
        &[(
            "",
            "toml",
            1,
            "metrics::the_documented_names_are_those_that_are_served",
        )],
    ),
    (
        "docs/operations.md",
        &[
            (
                "Installing it",
                "sh",
                1,
                "pages::the_package_is_made_and_installed_as_the_page_says",
            ),
            (
                "",
                "toml",
                2,
                "operations::the_configuration_of_the_operators_page_is_acceptable",
            ),
        ],
    ),
    (
        "client-sdk/go/README.md",
        &[
            (
                "",
                "sh",
                1,
                "readme::the_pages_of_the_clients_install_what_there_is",
            ),
            (
                "",
                "go",
                5,
                "go_sdk::the_readme_of_the_go_client_says_what_is_so",
            ),
        ],
    ),
    (
        "client-sdk/python/README.md",
        &[
            (
                "",
                "sh",
                1,
                "readme::the_pages_of_the_clients_install_what_there_is",
            ),
            (
                "",
                "python",
                5,
                "python_sdk::the_examples_of_the_python_readme_run",
            ),
        ],
    ),
    (
        "client-sdk/rust/README.md",
        &[
            (
                "",
                "toml",
                1,
                "readme::its_way_in_rust_and_the_page_of_the_rust_client_work",
            ),
            (
                "",
                "rust",
                4,
                "readme::its_way_in_rust_and_the_page_of_the_rust_client_work",
            ),
        ],
    ),
    (
        "client-sdk/typescript/README.md",
        &[
            (
                "",
                "sh",
                1,
                "readme::the_pages_of_the_clients_install_what_there_is",
            ),
            (
                "",
                "ts",
                7,
                "typescript_sdk::the_readme_of_the_typescript_client_says_what_is_so",
            ),
        ],
    ),
];

/// The pages below a directory.
fn pages(below: &Path, found: &mut Vec<String>) {
    let entries = std::fs::read_dir(below).unwrap().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            let foreign = ["target", "node_modules", ".git", "dist"];
            if !foreign.contains(&name) {
                pages(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let page = path.strip_prefix(workspace_dir()).unwrap();
            found.push(page.to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn every_block_of_every_page_belongs_to_a_story() {
    let mut all = Vec::new();
    pages(&workspace_dir(), &mut all);
    assert!(all.len() > 8, "{all:?}");
    for page in all {
        let claims = PAGES.iter().find(|(known, _)| *known == page);
        let claims = claims.map_or(&[][..], |(_, claims)| claims);
        let mut counts = vec![0; claims.len()];
        // A block without a language is a drawing.
        let blocks = fenced(&workspace_dir().join(&page)).into_iter();
        for block in blocks.filter(|block| !block.language.is_empty()) {
            let claim = claims.iter().position(|(heading, language, ..)| {
                *language == block.language && (heading.is_empty() || *heading == block.heading)
            });
            let claim = claim.unwrap_or_else(|| {
                panic!(
                    "{page}, `{}`: no story runs this:\n{}",
                    block.heading, block.text
                )
            });
            counts[claim] += 1;
        }
        let known: Vec<_> = claims.iter().map(|(_, _, count, _)| *count).collect();
        assert_eq!(counts, known, "{page}: does the story run all of them?");
    }
    for (_, _, _, story) in PAGES.iter().flat_map(|(_, claims)| *claims) {
        let (module, name) = story.rsplit_once("::").unwrap();
        let file = workspace_dir()
            .join("tests/it")
            .join(module.replace("::", "/"));
        let text = std::fs::read_to_string(file.with_extension("rs")).unwrap();
        assert!(
            text.contains(&format!("fn {name}(")),
            "there is no story `{story}`"
        );
    }
}

#[test]
fn the_package_is_made_and_installed_as_the_page_says() {
    let page = workspace_dir().join("docs/operations.md");
    let typed = blocks(&page, "sh").concat();
    let lines = typed
        .lines()
        .map(|line| line.split(" #").next().unwrap().trim_end());
    let lines: Vec<_> = lines.collect();
    let made = format!("cargo deb {}", CARGO_DEB_ARGUMENTS.join(" "));
    // The story of the unit makes it so, of programs that are built like this but without optimization, and installs it.
    assert_eq!(
        lines,
        [
            "cargo install cargo-deb",
            "cargo build --release --package mcp-sidecard --package mcp-sidecar-cli",
            &made,
            "sudo dpkg --install target/debian/mcp-sidecar_*.deb",
            "sudo usermod -aG mcp-sidecar \"$USER\"",
        ]
    );
    let sysusers =
        std::fs::read_to_string(workspace_dir().join("systemd/mcp-sidecar.sysusers.conf"));
    let manifest = std::fs::read_to_string(workspace_dir().join("daemon/Cargo.toml")).unwrap();
    assert!(
        manifest.contains("name = \"mcp-sidecar\""),
        "the name of the package"
    );
    let group =
        sysusers.is_ok_and(|text| text.contains("u mcp-sidecar") || text.contains("g mcp-sidecar"));
    assert!(group, "the group is made");
}

#[test]
fn tools_have_one_version() {
    let text = |path: &str| std::fs::read_to_string(workspace_dir().join(path)).unwrap();
    let (ci, generate) = (text(".ci/run"), text("proto/generate.sh"));
    let pinned = |script: &str, name: &str| {
        let line = script
            .lines()
            .find_map(|line| line.strip_prefix(&format!("readonly {name}=")));
        line.unwrap_or_else(|| panic!("`{name}` is not pinned"))
            .to_owned()
    };
    let packages: Vec<_> = SETS.iter().flat_map(|set| set.packages).collect();
    for (package, version) in [
        ("@bufbuild/buf@", pinned(&ci, "BUF_VERSION")),
        ("ts-proto@", pinned(&generate, "TS_PROTO_VERSION")),
        (
            "google.golang.org/protobuf/cmd/protoc-gen-go@",
            pinned(&generate, "PROTOC_GEN_GO_VERSION"),
        ),
        (
            "google.golang.org/grpc/cmd/protoc-gen-go-grpc@",
            pinned(&generate, "PROTOC_GEN_GO_GRPC_VERSION"),
        ),
    ] {
        let wanted = format!("{package}{version}");
        assert!(
            packages.iter().any(|known| ***known == *wanted),
            "{wanted} is not what the tests have"
        );
    }
    for (set, package) in SETS
        .iter()
        .flat_map(|set| set.packages.iter().map(move |it| (set, it)))
    {
        let name = |package: &str| {
            package
                .rsplit_once(['@', '='])
                .map(|(name, _)| name.to_owned())
        };
        for (other, same) in SETS
            .iter()
            .flat_map(|set| set.packages.iter().map(move |it| (set, it)))
        {
            // Two generations of the Python SDK are two peers.
            let meant = set.name.starts_with("py1") || other.name.starts_with("py1");
            if name(package) == name(same) && !meant {
                assert_eq!(package, same, "{} and {}", set.name, other.name);
            }
        }
    }
}
