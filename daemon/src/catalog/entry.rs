//! One entry of a list, read as far as the daemon needs it; everything else is kept raw.

use std::sync::Arc;

use super::output::OutputSchema;
use crate::mcp::headers::{ParamHeader, find_param_headers};
use crate::mcp::protocol::{ObjectWriter, RawJson};
pub use crate::model::approval::Hints;
use crate::model::status::Withheld;

/// A tool.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Its name at the server.
    pub name: String,
    /// Its title, else the title of its annotations, else empty.
    pub title: String,
    /// What it does; empty if not said.
    pub description: String,
    /// Schema of the arguments.
    pub input_schema: RawJson,
    /// Schema of the structured result.
    pub output_schema: Option<Arc<OutputSchema>>,
    /// Hints about its behaviour.
    pub hints: Hints,
    /// Whether it can only be called as a task (`execution.taskSupport`, MCP 2025-11-25).
    pub only_as_task: bool,
    /// Every other member, as a raw object; empty if none.
    pub extra: String,
    /// Arguments that are mirrored into headers.
    pub param_headers: Vec<ParamHeader>,
}

/// A resource.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Its URI.
    pub uri: String,
    /// Programmatic name.
    pub name: String,
    /// Name for people; empty if not given.
    pub title: String,
    /// What it is; empty if not said.
    pub description: String,
    /// Media type; empty if unknown.
    pub mime_type: String,
    /// Size in bytes, if known.
    pub size: Option<u64>,
    /// Every other member, as a raw object; empty if none.
    pub extra: String,
}

/// A family of resources.
#[derive(Clone, Debug)]
pub struct ResourceTemplate {
    /// URI template.
    pub uri_template: String,
    /// Programmatic name.
    pub name: String,
    /// Name for people; empty if not given.
    pub title: String,
    /// What it is; empty if not said.
    pub description: String,
    /// Media type; empty if unknown.
    pub mime_type: String,
    /// Every other member, as a raw object; empty if none.
    pub extra: String,
}

/// A prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Its name at the server.
    pub name: String,
    /// Name for people; empty if not given.
    pub title: String,
    /// What it is for; empty if not said.
    pub description: String,
    /// Its arguments.
    pub arguments: Vec<PromptArgument>,
    /// Every other member, as a raw object; empty if none.
    pub extra: String,
}

/// An argument of a prompt.
#[derive(Clone, Debug)]
pub struct PromptArgument {
    /// Its name.
    pub name: String,
    /// Name for people; empty if not given.
    pub title: String,
    /// What it is for; empty if not said.
    pub description: String,
    /// Whether it must be given.
    pub required: bool,
    /// Every other member, as a raw object; empty if none.
    pub extra: String,
}

/// The members of an object while it is read: what is taken out is known, the rest is kept.
#[derive(Debug)]
pub struct Fields(Vec<(String, RawJson)>);

impl Fields {
    /// Starts reading; `None` if the value is not an object.
    #[must_use]
    pub fn of(value: &RawJson) -> Option<Self> {
        value.members().map(Self)
    }

    /// Takes a member out, whatever it is.
    pub fn take(&mut self, name: &str) -> Option<RawJson> {
        let index = self.0.iter().rposition(|(key, _)| key == name)?;
        Some(self.0.remove(index).1)
    }

    /// Takes a member out if it has the wanted type; otherwise it stays among the rest.
    pub fn read<T: for<'a> serde::Deserialize<'a>>(&mut self, name: &str) -> Option<T> {
        let index = self.0.iter().rposition(|(key, _)| key == name)?;
        let value = self.0.get(index)?.1.read()?;
        self.0.remove(index);
        Some(value)
    }

    /// Takes a text out; empty if there is none.
    pub fn text(&mut self, name: &str) -> String {
        self.read(name).unwrap_or_default()
    }

    /// Takes a list out, as its elements; anything else stays among the rest.
    pub fn list(&mut self, name: &str) -> Option<Vec<RawJson>> {
        let elements = self.peek(name)?.elements()?;
        self.take(name);
        Some(elements)
    }

    /// Puts a member behind the others.
    pub fn put(&mut self, name: &str, value: RawJson) {
        self.0.push((name.to_owned(), value));
    }

    /// Looks at a member and leaves it where it is.
    #[must_use]
    pub fn peek(&self, name: &str) -> Option<&RawJson> {
        self.0
            .iter()
            .rev()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
    }

    /// What was not taken, as a raw object; empty if nothing is left.
    #[must_use]
    pub fn rest(self) -> String {
        let mut rest = ObjectWriter::new();
        for (name, value) in &self.0 {
            rest.raw(name, value.as_str());
        }
        if rest.is_empty() {
            String::new()
        } else {
            rest.finish().as_str().to_owned()
        }
    }
}

/// Reads a tool definition.
///
/// # Errors
/// Why the tool cannot be offered.
pub fn read_tool(item: &RawJson, over_http: bool) -> Result<Tool, Withheld> {
    let withheld = |name: &str, reason: String| Withheld {
        name: name.to_owned(),
        reason,
    };
    let mut fields =
        Fields::of(item).ok_or_else(|| withheld("", "it is not an object".to_owned()))?;
    let name = fields.text("name");
    if name.is_empty() {
        return Err(withheld("", "it has no name".to_owned()));
    }
    let schema = fields
        .take("inputSchema")
        .filter(|schema| schema.as_str() != "null");
    let Some(input_schema) = schema else {
        return Err(withheld(&name, "it has no `inputSchema`".to_owned()));
    };
    if !input_schema.is_object() {
        return Err(withheld(
            &name,
            "its `inputSchema` is not an object".to_owned(),
        ));
    }
    // Over other transports there are no headers, so a bad annotation harms nobody.
    let param_headers = match find_param_headers(&input_schema) {
        Ok(found) => found,
        Err(_) if !over_http => Vec::new(),
        Err(reason) => return Err(withheld(&name, reason)),
    };
    let hint = |fields: &Fields, key: &str| {
        fields
            .peek("annotations")
            .and_then(|hints| hints.get(key))
            .and_then(|hint| hint.read::<bool>())
    };
    let hints = Hints {
        read_only: hint(&fields, "readOnlyHint"),
        destructive: hint(&fields, "destructiveHint"),
        idempotent: hint(&fields, "idempotentHint"),
        open_world: hint(&fields, "openWorldHint"),
    };
    let mut title = fields.text("title");
    if title.is_empty() {
        let annotated = fields
            .peek("annotations")
            .and_then(|hints| hints.get("title"));
        title = annotated.and_then(|title| title.read()).unwrap_or_default();
    }
    let output_schema = fields
        .take("outputSchema")
        .filter(|schema| schema.as_str() != "null")
        .map(|schema| Arc::new(OutputSchema::new(schema)));
    let description = fields.text("description");
    let support = fields
        .peek("execution")
        .and_then(|execution| execution.get("taskSupport"));
    Ok(Tool {
        name,
        title,
        description,
        input_schema,
        output_schema,
        hints,
        only_as_task: support.is_some_and(|support| support.as_str() == "\"required\""),
        extra: fields.rest(),
        param_headers,
    })
}

/// Reads a resource; `None` if it has no URI, because nobody could read it.
#[must_use]
pub fn read_resource(item: &RawJson) -> Option<Resource> {
    let mut fields = Fields::of(item)?;
    Some(Resource {
        uri: fields.read("uri")?,
        name: fields.text("name"),
        title: fields.text("title"),
        description: fields.text("description"),
        mime_type: fields.text("mimeType"),
        size: fields.read("size"),
        extra: fields.rest(),
    })
}

/// Reads a resource template; `None` if it has no URI template.
#[must_use]
pub fn read_template(item: &RawJson) -> Option<ResourceTemplate> {
    let mut fields = Fields::of(item)?;
    Some(ResourceTemplate {
        uri_template: fields.read("uriTemplate")?,
        name: fields.text("name"),
        title: fields.text("title"),
        description: fields.text("description"),
        mime_type: fields.text("mimeType"),
        extra: fields.rest(),
    })
}

/// Reads a prompt; `None` if it has no name.
#[must_use]
pub fn read_prompt(item: &RawJson) -> Option<Prompt> {
    let mut fields = Fields::of(item)?;
    let name: String = fields.read("name")?;
    let arguments = fields
        .take("arguments")
        .and_then(|list| list.elements())
        .unwrap_or_default();
    Some(Prompt {
        name,
        title: fields.text("title"),
        description: fields.text("description"),
        arguments: arguments.iter().filter_map(read_argument).collect(),
        extra: fields.rest(),
    })
}

fn read_argument(item: &RawJson) -> Option<PromptArgument> {
    let mut fields = Fields::of(item)?;
    Some(PromptArgument {
        name: fields.read("name")?,
        title: fields.text("title"),
        description: fields.text("description"),
        required: fields.read("required").unwrap_or(false),
        extra: fields.rest(),
    })
}
