//! Takes JSON apart without decoding it further than needed, so that numbers stay the text they were.
//!
//! Never fails loudly: what is not of the wanted shape is `None`.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::json::{Elements, Members};

/// Members of an object in order, repeated names included; none for other values, and for names that are not Unicode.
pub(super) fn members(json: &str) -> Option<Vec<(Cow<'_, str>, &str)>> {
    let members: Members<'_> = serde_json::from_str(json).ok()?;
    let members = members.0.into_iter();
    Some(members.map(|(name, value)| (name, value.get())).collect())
}

/// Elements of an array in order.
pub(super) fn elements(json: &str) -> Option<Vec<&str>> {
    let elements: Elements<'_> = serde_json::from_str(json).ok()?;
    Some(elements.0.into_iter().map(RawValue::get).collect())
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
