//! What a validation would cost at most, found out by a walk that stops when it is too much.
//!
//! The walk goes wherever the validator could go, without ever looking at what holds, so it is an upper bound: `anyOf`
//! counts every branch. Where references multiply, the walk multiplies with them and meets its bound.

use std::cell::Cell;
use std::collections::HashSet;

use serde_json::{Map, Value};

/// Deepest nesting of schemas within schemas, references included.
const MAX_DEPTH: u32 = 400;
/// Steps that a byte costs that is matched with a regular expression.
const PER_BYTE: u64 = 4;

/// Keywords that make references which depend on more than the schema's text.
const DYNAMIC: &[&str] = &["$dynamicRef", "$recursiveRef"];
/// Keywords with one schema for the same value.
const SAME: &[&str] = &["not", "if", "then", "else"];
/// Keywords with a list of schemas for the same value.
const SAME_LISTS: &[&str] = &["allOf", "anyOf", "oneOf"];
/// Keywords with schemas by name for the same value.
const SAME_MAPS: &[&str] = &["dependentSchemas", "dependencies"];
/// Keywords with one schema for every member of an object.
const MEMBERS: &[&str] = &["additionalProperties", "unevaluatedProperties"];
/// Keywords with one schema for every element of an array.
const ELEMENTS: &[&str] = &["additionalItems", "unevaluatedItems", "contains"];
/// Keywords that make the validator go through the schemas for the same value once more.
const AGAIN: &[&str] = &["unevaluatedProperties", "unevaluatedItems"];

/// Every other keyword with schemas: one, or a list.
const OTHERS: &[&str] = &["items", "prefixItems", "propertyNames", "contentSchema"];
/// Every other keyword with schemas by name.
const OTHER_MAPS: &[&str] = &["properties", "patternProperties", "$defs", "definitions"];

/// Refuses schemas whose cost cannot be told from their text, or which have too many patterns. The answer continues a
/// sentence about the schema.
pub(super) fn check_schema(root: &Value, max_patterns: usize) -> Result<(), String> {
    let mut patterns = 0;
    let mut seen = HashSet::new();
    let mut open = vec![root];
    while let Some(schema) = open.pop() {
        // References may lead to the same place again and again.
        if !seen.insert(std::ptr::from_ref(schema)) {
            continue;
        }
        let Value::Object(keywords) = schema else {
            continue;
        };
        let text = |key: &str| keywords.get(key).and_then(Value::as_str);
        if let Some(key) = DYNAMIC.iter().find(|key| keywords.contains_key(**key)) {
            return Err(format!("is not checked: it uses {key}"));
        }
        let has_id = text("$id").is_some() || text("id").is_some();
        if has_id && !std::ptr::eq(schema, root) {
            return Err("is not checked: it holds another schema with an id".to_owned());
        }
        if let Some(reference) = text("$ref") {
            let Some(target) = target(root, reference) else {
                return Err(format!(
                    "is not checked: it refers to `{reference}`, which it does not hold; nothing is fetched"
                ));
            };
            open.push(target);
        }
        let by_pattern = keywords.get("patternProperties").and_then(Value::as_object);
        patterns += usize::from(text("pattern").is_some()) + by_pattern.map_or(0, Map::len);
        let values = |keys: &[&str]| -> Vec<&Value> {
            keys.iter().filter_map(|key| keywords.get(*key)).collect()
        };
        for value in [SAME, SAME_LISTS, MEMBERS, ELEMENTS, OTHERS]
            .map(values)
            .concat()
        {
            match value {
                Value::Array(schemas) => open.extend(schemas),
                schema => open.push(schema),
            }
        }
        let maps = [SAME_MAPS, OTHER_MAPS].map(values).concat();
        open.extend(
            maps.into_iter()
                .filter_map(Value::as_object)
                .flat_map(Map::values),
        );
    }
    if patterns > max_patterns {
        return Err(format!(
            "is not checked: it has {patterns} regular expressions, more than {max_patterns}"
        ));
    }
    Ok(())
}

/// The part of the schema that a reference names; none for references that lead outside or take another way than a JSON
/// Pointer.
fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    if pointer.contains('%') {
        return None;
    }
    root.pointer(pointer)
}

/// Why a walk ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TooMuch {
    Steps,
    Depth,
}

impl std::fmt::Display for TooMuch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Steps => "it could take more steps than checks.steps allows",
            Self::Depth => {
                "the output schema is nested too deeply, or refers to itself without end"
            }
        })
    }
}

/// One walk.
pub(super) struct Work<'a> {
    root: &'a Value,
    left: Cell<u64>,
}

type Walked = Result<(), TooMuch>;

impl<'a> Work<'a> {
    /// A walk of at most `steps`, through a schema that [`check_schema`] accepted.
    pub(super) fn new(root: &'a Value, steps: u64) -> Self {
        Self {
            root,
            left: Cell::new(steps),
        }
    }

    /// Whether the whole validation is within the bounds.
    pub(super) fn measure(&self, instance: &Value) -> Walked {
        self.schema(self.root, instance, MAX_DEPTH)
    }

    fn spend(&self, steps: u64) -> Walked {
        let left = self.left.get().checked_sub(steps).ok_or(TooMuch::Steps)?;
        self.left.set(left);
        Ok(())
    }

    fn schema(&self, schema: &Value, instance: &Value, depth: u32) -> Walked {
        self.spend(1)?;
        let Value::Object(keywords) = schema else {
            return Ok(());
        };
        let depth = depth.checked_sub(1).ok_or(TooMuch::Depth)?;
        self.spend(keywords.len() as u64)?;
        let again = AGAIN.iter().any(|key| keywords.contains_key(*key));
        for _ in 0..=u8::from(again) {
            self.same(keywords, instance, depth)?;
        }
        if let Some(values) = keywords.get("enum") {
            self.size(values)?;
        }
        if let Some(value) = keywords.get("const") {
            self.size(value)?;
        }
        match instance {
            Value::String(text) if keywords.contains_key("pattern") => self.matching(text),
            Value::Object(members) => self.members(keywords, members, depth),
            Value::Array(elements) => self.elements(keywords, elements, depth),
            _ => Ok(()),
        }
    }

    /// What applies to the value itself.
    fn same(&self, keywords: &Map<String, Value>, instance: &Value, depth: u32) -> Walked {
        let reference = keywords.get("$ref").and_then(Value::as_str);
        if let Some(target) = reference.and_then(|reference| target(self.root, reference)) {
            self.schema(target, instance, depth)?;
        }
        for schema in SAME.iter().filter_map(|key| keywords.get(*key)) {
            self.schema(schema, instance, depth)?;
        }
        let lists = SAME_LISTS.iter().filter_map(|key| keywords.get(*key));
        for schema in lists.filter_map(Value::as_array).flatten() {
            self.schema(schema, instance, depth)?;
        }
        let maps = SAME_MAPS.iter().filter_map(|key| keywords.get(*key));
        for schema in maps.filter_map(Value::as_object).flat_map(Map::values) {
            self.schema(schema, instance, depth)?;
        }
        Ok(())
    }

    fn members(
        &self,
        keywords: &Map<String, Value>,
        members: &Map<String, Value>,
        depth: u32,
    ) -> Walked {
        if let Some(properties) = keywords.get("properties").and_then(Value::as_object) {
            self.spend(properties.len() as u64)?;
            for (name, schema) in properties {
                if let Some(value) = members.get(name) {
                    self.schema(schema, value, depth)?;
                }
            }
        }
        let patterns = keywords.get("patternProperties").and_then(Value::as_object);
        for (name, value) in members {
            for schema in patterns.iter().flat_map(|patterns| patterns.values()) {
                self.matching(name)?;
                self.schema(schema, value, depth)?;
            }
            for schema in MEMBERS.iter().filter_map(|key| keywords.get(*key)) {
                self.schema(schema, value, depth)?;
            }
            if let Some(schema) = keywords.get("propertyNames") {
                self.schema(schema, &Value::String(name.clone()), depth)?;
            }
        }
        Ok(())
    }

    fn elements(&self, keywords: &Map<String, Value>, elements: &[Value], depth: u32) -> Walked {
        if keywords.contains_key("uniqueItems") {
            elements.iter().try_for_each(|element| self.size(element))?;
        }
        // By their places: `prefixItems`, and what `items` was before it.
        for places in ["prefixItems", "items"] {
            let places = keywords.get(places).and_then(Value::as_array);
            for (schema, element) in places.into_iter().flatten().zip(elements) {
                self.schema(schema, element, depth)?;
            }
        }
        let items = keywords.get("items").filter(|items| !items.is_array());
        for element in elements {
            let every = ELEMENTS.iter().filter_map(|key| keywords.get(*key));
            for schema in items.into_iter().chain(every) {
                self.schema(schema, element, depth)?;
            }
        }
        Ok(())
    }

    fn matching(&self, text: &str) -> Walked {
        self.spend(text.len() as u64 * PER_BYTE)
    }

    /// What it costs to compare a value.
    fn size(&self, value: &Value) -> Walked {
        self.spend(1)?;
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.size(item)),
            Value::Object(members) => members.values().try_for_each(|value| self.size(value)),
            _ => Ok(()),
        }
    }
}
