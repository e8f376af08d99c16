//! The daemon's binary: hands over to the command line. Holds no logic.

mod allocator;
mod cli;

fn main() -> std::process::ExitCode {
    cli::Cli::run()
}
