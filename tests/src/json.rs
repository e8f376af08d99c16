//! JSON as it was written: numbers that no type holds, members byte for byte.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

/// Decodes as much as possible; what cannot be decoded, such as `1e400`, is null.
pub fn lenient(text: &str) -> Value {
    if let Ok(value) = serde_json::from_str(text) {
        return value;
    }
    if let Ok(members) = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(text) {
        let members = members.into_iter();
        return members
            .map(|(key, value)| (key, lenient(value.get())))
            .collect();
    }
    let items = serde_json::from_str::<Vec<Box<RawValue>>>(text).unwrap_or_default();
    if items.is_empty() {
        return Value::Null;
    }
    items.iter().map(|item| lenient(item.get())).collect()
}

/// A member of nested objects, byte for byte.
pub fn raw_member(text: &str, path: &[&str]) -> Option<String> {
    let Some((first, rest)) = path.split_first() else {
        return Some(text.to_owned());
    };
    let members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).ok()?;
    raw_member(members.get(*first)?.get(), rest)
}
