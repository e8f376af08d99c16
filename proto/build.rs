//! Compiles the contract with `protox`, so that no installed `protoc` is needed.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = "mcpsidecar/v1";
    println!("cargo:rerun-if-changed={dir}");
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|path| path.extension().is_some_and(|ext| ext == "proto"));
    files.sort();

    // Comments stay in the descriptor set: `grpcurl describe` shows them, they are the live manual.
    let mut compiler = protox::Compiler::new(["."])?;
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_files(&files)?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(
        out.join("mcpsidecar.v1.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    // With names a message finds its descriptor, for example to be written as JSON.
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds_with_config(compiler.file_descriptor_set(), config)?;
    Ok(())
}
