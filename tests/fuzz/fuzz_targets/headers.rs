//! Mirrored arguments: whatever a schema and arguments hold, every header is one that HTTP can carry.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcp_sidecard::mcp::headers::{encode_value, find_param_headers, param_headers};
use mcp_sidecard::mcp::protocol::RawJson;

fuzz_target!(|input: (&str, &str, &str)| {
    let (schema, arguments, value) = input;
    let safe = |text: &str| text.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
    assert!(safe(&encode_value(value)));
    let (Ok(schema), Ok(arguments)) = (
        RawJson::parse(schema.to_owned()),
        RawJson::parse(arguments.to_owned()),
    ) else {
        return;
    };
    let Ok(annotations) = find_param_headers(&schema) else {
        return;
    };
    for (name, value) in param_headers(&annotations, &arguments) {
        assert!(safe(&name) && safe(&value), "{name}: {value}");
        assert!(name.starts_with("mcp-param-"));
    }
});
