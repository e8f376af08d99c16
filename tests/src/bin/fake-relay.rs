//! A child that passes everything on to a fake in the test's own process.

fn main() {
    mcp_sidecar_tests::fake::relay::main();
}
