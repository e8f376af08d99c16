//! A scriptable MCP server over standard streams, for the tests.

fn main() {
    mcp_sidecar_tests::fake_stdio::main();
}
