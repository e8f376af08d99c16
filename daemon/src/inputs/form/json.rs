//! Takes JSON apart without decoding it further than needed, so that numbers stay the text they were.
//!
//! Never fails loudly: what is not of the wanted shape is `None`.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Members of an object in order, repeated names included; none for other values, and for names that are not Unicode.
pub(super) fn members(json: &str) -> Option<Vec<(Cow<'_, str>, &str)>> {
    let members: Members<'_> = serde_json::from_str(json).ok()?;
    Some(members.0)
}

/// Elements of an array in order.
pub(super) fn elements(json: &str) -> Option<Vec<&str>> {
    let elements: Vec<&RawValue> = serde_json::from_str(json).ok()?;
    Some(elements.into_iter().map(RawValue::get).collect())
}

/// A string; none if it is not Unicode (an escaped half of a surrogate pair).
pub(super) fn text(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}

/// An array of strings.
pub(super) fn texts(json: &str) -> Option<Vec<String>> {
    serde_json::from_str(json).ok()
}

/// A boolean.
pub(super) fn boolean(json: &str) -> Option<bool> {
    serde_json::from_str(json).ok()
}

struct Members<'a>(Vec<(Cow<'a, str>, &'a str)>);

#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect<'a>(std::marker::PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Collect<'a> {
            type Value = Members<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Name(name)) = map.next_key()? {
                    members.push((name, map.next_value::<&RawValue>()?.get()));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect(std::marker::PhantomData))
    }
}
