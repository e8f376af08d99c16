//! Installs sets of third-party peers and prints their directories, one a line: `peers NAME...`

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

fn main() {
    for name in std::env::args().skip(1) {
        println!(
            "{}",
            mcp_sidecar_tests::peers::install::install(&name).display()
        );
    }
}
