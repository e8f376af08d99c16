//! A server's request for an answer of a language model: whether it may be made, and what it says (MCP client/sampling).

use super::{Unanswered, invalid};
use crate::mcp::protocol::RawJson;
use crate::model::spec::Abilities;

/// Longest summary, in characters.
const SUMMARY: usize = 200;

/// Looks at the parameters of `sampling/createMessage`, and says in short what is asked.
///
/// # Errors
/// Refused with -32602 for what the specification does not allow, or was not advertised.
pub(super) fn summary(params: &RawJson, advertised: Abilities) -> Result<String, Unanswered> {
    let given = |name: &str| params.get(name).filter(|value| value.as_str() != "null");
    let messages = given("messages").and_then(|messages| messages.elements());
    let messages = messages.ok_or_else(|| invalid("`messages` must be an array"))?;
    if given("maxTokens")
        .and_then(|tokens| tokens.read::<f64>())
        .is_none()
    {
        return Err(invalid("`maxTokens` must be a number"));
    }
    if !advertised.sampling_tools {
        for name in ["tools", "toolChoice"] {
            if given(name).is_some() {
                return Err(invalid(&format!(
                    "this client does not support `{name}` (sampling.tools)"
                )));
            }
        }
    }
    if let Some(context) = given("includeContext") {
        match context.read::<String>().as_deref() {
            Some("none") => {}
            Some("thisServer" | "allServers") if advertised.sampling_context => {}
            Some("thisServer" | "allServers") => {
                return Err(invalid(
                    "this client does not support `includeContext` (sampling.context)",
                ));
            }
            _ => {
                return Err(invalid(
                    "`includeContext` must be `none`, `thisServer` or `allServers`",
                ));
            }
        }
    }
    let last = messages.last().and_then(|message| message.get("content"));
    Ok(shorten(last.and_then(|content| text(&content))))
}

/// The first text in the content of a message.
fn text(content: &RawJson) -> Option<String> {
    let of_block = |block: &RawJson| block.get("text").and_then(|text| text.read::<String>());
    match content.elements() {
        Some(blocks) => blocks.iter().find_map(of_block),
        None => of_block(content),
    }
}

fn shorten(text: Option<String>) -> String {
    let text = text.unwrap_or_default();
    match text.char_indices().nth(SUMMARY) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::{Abilities, RawJson, Unanswered, summary};

    fn said(params: &str, advertised: Abilities) -> Result<String, String> {
        let params = RawJson::parse(params.to_owned()).unwrap();
        summary(&params, advertised).map_err(|refused| match refused {
            Unanswered::Refused(rpc) => {
                assert_eq!(rpc.code, -32602);
                rpc.message
            }
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_summary_is_the_beginning_of_the_last_message() {
        let none = Abilities::NOTHING;
        let of = |messages: &str| {
            said(
                &format!(r#"{{"maxTokens":1e2,"tools":null,"messages":{messages}}}"#),
                none,
            )
            .unwrap()
        };
        assert_eq!(of("[]"), "");
        assert_eq!(
            of(
                r#"[{"role":"user","content":{"type":"text","text":"a"}},{"role":"user","content":{"type":"text","text":"b"}}]"#
            ),
            "b"
        );
        assert_eq!(
            of(
                r#"[{"role":"user","content":[{"type":"image","data":""},{"type":"text","text":"c"}]}]"#
            ),
            "c"
        );
        assert_eq!(of(r#"[{"role":"user","content":7}]"#), "");
        let long = "ä".repeat(300);
        let cut = of(&format!(
            r#"[{{"role":"user","content":{{"type":"text","text":"{long}"}}}}]"#
        ));
        assert_eq!(cut.chars().count(), 201);
    }

    #[test]
    fn only_what_was_advertised_may_be_asked() {
        let none = Abilities::NOTHING;
        let all = Abilities {
            sampling_tools: true,
            sampling_context: true,
            ..Abilities::NOTHING
        };
        for extra in [
            r#""tools":[]"#,
            r#""toolChoice":{}"#,
            r#""includeContext":"thisServer""#,
        ] {
            let params = format!(r#"{{"messages":[],"maxTokens":1,{extra}}}"#);
            let refused = said(&params, none).unwrap_err();
            assert!(refused.contains("does not support"), "{refused}");
            assert_eq!(said(&params, all), Ok(String::new()));
        }
        for bad in [
            r#"{"maxTokens":1}"#,
            r#"{"messages":{},"maxTokens":1}"#,
            r#"{"messages":[]}"#,
            r#"{"messages":[],"maxTokens":"1"}"#,
            r#"{"messages":[],"maxTokens":1,"includeContext":"everything"}"#,
        ] {
            assert!(said(bad, all).unwrap_err().contains("must be"), "{bad}");
        }
    }
}
