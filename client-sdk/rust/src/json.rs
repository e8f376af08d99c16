//! The JSON mapping of the contract's messages (feature `json`).
//!
//! Every message of [`proto`](crate::proto) can be written as the JSON that ProtoJSON defines, and read from it:
//! `lowerCamelCase` names, enums by name, 64-bit integers as text, bytes in base64, times as RFC 3339. Fields that have
//! their default are left out. The text in `..._json` fields stays text.

use std::sync::LazyLock;

use mcp_sidecar_proto::FILE_DESCRIPTOR_SET;
use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde::{Serialize, Serializer, de, ser};

/// The contract. `None` cannot happen: the descriptor set is built with this program.
static POOL: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET).ok());

fn descriptor<M: Name>() -> Option<MessageDescriptor> {
    POOL.as_ref()?.get_message_by_name(&M::full_name())
}

/// A message of the contract, to be written as JSON by any [`Serializer`].
///
/// ```
/// use mcp_sidecar_client::{Json, proto::ToolCall};
///
/// let call = ToolCall { server_id: "demo".to_owned(), ..Default::default() };
/// assert_eq!(serde_json::to_string(&Json(&call)).unwrap(), r#"{"serverId":"demo"}"#);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Json<'a, M>(pub &'a M);

impl<M: Message + Name> Serialize for Json<'_, M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let descriptor = descriptor::<M>()
            .ok_or_else(|| <S::Error as ser::Error>::custom("no message of the contract"))?;
        let bytes = self.0.encode_to_vec();
        let message = DynamicMessage::decode(descriptor, &bytes[..])
            .map_err(<S::Error as ser::Error>::custom)?;
        message.serialize(serializer)
    }
}

/// Reads a message of the contract from JSON. Names are accepted in both forms, `serverId` and `server_id`; what the
/// contract does not know is refused.
///
/// ```
/// use mcp_sidecar_client::{from_json, proto::ToolCall};
///
/// let call: ToolCall = from_json(r#"{"server_id": "demo", "argumentsJson": "{\"n\":1.10}"}"#).unwrap();
/// assert_eq!(call.arguments_json.as_deref(), Some(r#"{"n":1.10}"#));
/// assert!(from_json::<ToolCall>(r#"{"sever_id": "demo"}"#).is_err());
/// ```
///
/// # Errors
///
/// If the text is no JSON, or does not fit the message.
pub fn from_json<M: Message + Name + Default>(text: &str) -> Result<M, serde_json::Error> {
    let descriptor = descriptor::<M>()
        .ok_or_else(|| <serde_json::Error as de::Error>::custom("no message of the contract"))?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let message = DynamicMessage::deserialize(descriptor, &mut reader)?;
    reader.end()?;
    message
        .transcode_to()
        .map_err(<serde_json::Error as de::Error>::custom)
}
