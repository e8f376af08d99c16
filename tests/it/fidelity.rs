//! What a server or an app says reaches the other side as it was said (cases B26, B28, B31). See also
//! `calls::b26_json_passes_unchanged_both_ways`, `calls::b26_any_json_passes_unchanged` and
//! `calls::b31_absent_null_and_falsy_structured_results_differ`.

use std::collections::{BTreeMap, HashMap};

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;
use mcp_sidecar_tests::v1::content_block::Block;
use serde_json::value::RawValue;

/// Numbers that a double cannot hold, or that change when they are decoded.
const NUMBERS: &str = r#"{"z":9007199254740993,"b":1915883588174806058,"c":-9223372036854775808,"d":18446744073709551615,"e":1e400,"f":0.1000000000000000055,"g":1.0,"h":-0,"a":[1E+2,1.10]}"#;
/// What a vendor adds anywhere.
const VENDOR: &str =
    r#""_meta":{"vendor/x":18446744073709551615},"vendor":{"b":1.0,"a":null,"é":"\u00e9"}"#;

/// The members of an object, byte for byte.
fn members(text: &str) -> BTreeMap<String, String> {
    let members: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(text).unwrap_or_else(|cause| panic!("{cause}: {text}"));
    let members = members.into_iter();
    members
        .map(|(name, value)| (name, value.get().to_owned()))
        .collect()
}

/// The members of an object without some.
fn without(text: &str, names: &[&str]) -> BTreeMap<String, String> {
    let mut members = members(text);
    for name in names {
        assert!(members.remove(*name).is_some(), "{name} is in {text}");
    }
    members
}

/// A result of the wanted era, as text.
fn result(modern: bool, members: &str) -> Reply {
    let complete = r#""resultType":"complete","ttlMs":0,"cacheScope":"private","#;
    Reply::Text(format!(
        "{{{}{members}}}",
        if modern { complete } else { "" }
    ))
}

/// The story in both eras, with one and with two apps.
async fn both_eras(
    lists: &'static [(&'static str, &'static str, &'static str)],
    story: impl AsyncFn(&Stage, &FakeMcp, bool),
) {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let fake = FakeMcp::echo(modern).await;
            for (method, key, entries) in lists {
                fake.reply(method, move |_| {
                    result(modern, &format!("\"{key}\":[{entries}]"))
                });
            }
            let mut spec = http_spec("S", &fake.url());
            spec.client_capabilities = Some(v1::ClientCapabilities {
                elicitation_form: true,
                ..Default::default()
            });
            stage.add("s", spec).await;
            story(&stage, &fake, modern).await;
        })
        .await;
    }
}

#[tokio::test]
async fn b26_numbers_keep_their_form_everywhere() {
    both_eras(&[], async |stage, fake, modern| {
        let content = format!(r#""content":[],"structuredContent":{NUMBERS},"_meta":{NUMBERS}"#);
        fake.reply("tools/call", move |seen| {
            let token = &seen.params()["_meta"]["progressToken"];
            let frame = |method: &str, params: String| {
                let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
                Step::Bytes(format!("data: {text}\n\n").into())
            };
            let log = format!(r#"{{"level":"error","data":{NUMBERS},"_meta":{NUMBERS}}}"#);
            let progress = format!(r#"{{"progressToken":{token},"progress":1,"x":{NUMBERS}}}"#);
            let Reply::Text(result) = result(modern, &content) else {
                panic!("a text")
            };
            let answer = format!(
                r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#,
                seen.json["id"]
            );
            Reply::Sse(vec![
                frame("notifications/message", log),
                frame("notifications/progress", progress),
                Step::Bytes(format!("data: {answer}\n\n").into()),
            ])
        });
        let called = stage.everyone(async |app, _| {
            let mut call = app.call("s", "echo", NUMBERS);
            call.meta_json = format!(r#"{{"vendor/n":{NUMBERS}}}"#);
            call.log_level = v1::LogLevel::Debug.into();
            app.stream_with(call)
                .await
                .unwrap()
                .collect()
                .await
                .unwrap()
        });
        for events in called.await {
            let [
                Event::Started(_),
                Event::Log(log),
                Event::Progress(progress),
                Event::Result(result),
            ] = &events[..]
            else {
                panic!("{events:#?}");
            };
            assert_eq!(log.data_json, NUMBERS);
            assert_eq!(members(&log.extra_json)["_meta"], NUMBERS);
            assert_eq!(members(&progress.extra_json)["x"], NUMBERS);
            assert_eq!(result.structured_content_json.as_deref(), Some(NUMBERS));
            assert_eq!(result.meta_json, NUMBERS);
        }
        for seen in fake.seen_of("tools/call") {
            assert_eq!(seen.arguments(), NUMBERS);
            assert!(seen.text().contains(&format!(r#""vendor/n":{NUMBERS}"#)));
        }
        // The data of an error.
        fake.reply("tools/call", |seen| {
            let id = &seen.json["id"];
            let error = format!(r#"{{"code":-32000,"message":"no","data":{NUMBERS}}}"#);
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
            Reply::Raw(
                200,
                vec![("content-type", "application/json".to_owned())],
                text.into(),
            )
        });
        let refused = stage.everyone(async |app, _| app.call_tool("s", "echo", "{}").await);
        for outcome in refused.await {
            let facts = ErrorFacts::expect(outcome, Code::Unknown, "UPSTREAM_ERROR");
            assert_eq!(facts.metadata["data_json"], NUMBERS);
        }
    })
    .await;
}

#[tokio::test]
async fn b26_odd_json_has_a_defined_way() {
    // Members that are given twice and halves of surrogate pairs are JSON by its grammar: they pass as they are.
    let odd = [
        r#"{"a":1,"a":2}"#,
        r#"{"a":"\ud800","b":"\udc00x"}"#,
        r#"{"":{"":[]}}"#,
        "{\"a\" :\t1 ,\r\n\"b\":[ ] }",
        r#"{"__proto__":1,"constructor":null}"#,
    ];
    // What is no JSON by its grammar does not pass.
    let bad = [
        r#"{"a":01}"#,
        r#"{"a":.5}"#,
        r#"{"a":NaN}"#,
        r#"{"a":1,}"#,
        "{'a':1}",
        "{\"a\":\"\u{1}\"}",
        "\u{feff}{}",
    ];
    both_eras(&[], async |stage, fake, modern| {
        fake.reply("tools/call", move |seen| {
            let arguments = seen.arguments();
            result(
                modern,
                &format!(r#""content":[],"structuredContent":{arguments}"#),
            )
        });
        for text in odd {
            let results = stage.everyone(async |app, _| app.call_tool("s", "echo", text).await);
            for outcome in results.await {
                let result = outcome.unwrap_or_else(|status| panic!("{text}: {status:?}"));
                assert_eq!(result.structured_content_json.as_deref(), Some(text));
            }
        }
        for text in bad {
            let outcome = stage.other().call_tool("s", "echo", text).await;
            let facts = ErrorFacts::expect(outcome, Code::InvalidArgument, "INVALID_FIELD");
            assert_eq!(facts.field, "call.arguments_json", "{text:?}");
        }
    })
    .await;
}

const TOOL: &str = r#"{"_meta":{"vendor/x":18446744073709551615},"name":"full","title":"Full","icons":[{"src":"data:,x","sizes":["1x1"]}],"description":"D","inputSchema":{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"z":{"type":"integer","maximum":9007199254740993,"enumNames":["Z"]},"a":{"const":1.0}},"x-order":["z","a"]},"outputSchema":{"type":"object","x":1.10},"annotations":{"readOnlyHint":true,"vendorHint":[1.0]},"execution":{"taskSupport":"optional"},"vendor":null}"#;
const RESOURCE: &str = r#"{"uri":"a:1","name":"R","title":"T","mimeType":"text/plain","size":3,"annotations":{"priority":1.0},"icons":[],"_meta":{"vendor/x":18446744073709551615},"vendor":1.0}"#;
const TEMPLATE: &str = r#"{"uriTemplate":"a:{n}","name":"T","annotations":{"audience":["user"]},"_meta":{"vendor/x":1.0},"vendor":1.0}"#;
const PROMPT: &str = r#"{"name":"P","title":"T","arguments":[{"name":"n","required":true,"_meta":{"vendor/x":1.0},"vendor":1.0}],"icons":[],"_meta":{"vendor/x":1.0},"vendor":1.0}"#;

#[tokio::test]
async fn b28_definitions_lose_nothing() {
    let lists = &[
        ("tools/list", "tools", TOOL),
        ("resources/list", "resources", RESOURCE),
        ("resources/templates/list", "resourceTemplates", TEMPLATE),
        ("prompts/list", "prompts", PROMPT),
    ];
    both_eras(lists, async |stage, _, _| {
        stage
            .everyone(async |app, _| {
                let tool = app.list_tools().await.remove(0);
                let known = [
                    "name",
                    "title",
                    "description",
                    "inputSchema",
                    "outputSchema",
                ];
                let given = members(TOOL);
                assert_eq!(members(&tool.extra_json), without(TOOL, &known));
                assert_eq!(tool.input_schema_json, given["inputSchema"]);
                assert_eq!(tool.output_schema_json, given["outputSchema"]);
                assert_eq!(
                    (tool.title.as_str(), tool.description.as_str()),
                    ("Full", "D")
                );
                assert_eq!(tool.annotations.unwrap().read_only_hint, Some(true));

                let resource = app.list_resources("s").await.remove(0);
                let known = ["uri", "name", "title", "mimeType", "size"];
                assert_eq!(members(&resource.extra_json), without(RESOURCE, &known));
                assert_eq!(resource.size, Some(3));

                let request = v1::ListResourceTemplatesRequest {
                    namespace: app.namespace(),
                    ..Default::default()
                };
                let templates = app.resources().list_resource_templates(request).await;
                let template = templates.unwrap().into_inner().resource_templates.remove(0);
                let known = ["uriTemplate", "name"];
                assert_eq!(members(&template.extra_json), without(TEMPLATE, &known));

                let mut prompt = app.list_prompts("s").await.remove(0);
                let known = ["name", "title", "arguments"];
                assert_eq!(members(&prompt.extra_json), without(PROMPT, &known));
                let argument = prompt.arguments.remove(0);
                assert!(argument.required);
                let extra = members(&argument.extra_json);
                assert_eq!(
                    (extra["_meta"].as_str(), extra["vendor"].as_str()),
                    (r#"{"vendor/x":1.0}"#, "1.0")
                );
            })
            .await;
    })
    .await;
}

/// Expects the vendor's members.
#[track_caller]
fn vendor(extra: &str) {
    let wanted = members(&format!("{{{VENDOR}}}"));
    let found = members(extra);
    for (name, value) in wanted {
        assert_eq!(found.get(&name), Some(&value), "{name} in {extra}");
    }
}

#[tokio::test]
async fn b28_results_lose_nothing() {
    both_eras(&[], async |stage, fake, modern| {
        let blocks = [
            format!(r#"{{"type":"text","text":"t",{VENDOR}}}"#),
            format!(r#"{{"type":"image","data":"AAE=","mimeType":"image/png",{VENDOR}}}"#),
            format!(r#"{{"type":"audio","data":"AAE=","mimeType":"audio/wav",{VENDOR}}}"#),
            format!(r#"{{"type":"resource_link","uri":"a:1","name":"n",{VENDOR}}}"#),
            format!(r#"{{"type":"resource","resource":{{"uri":"a:1","blob":"AAE=",{VENDOR}}},{VENDOR}}}"#),
            format!(r#"{{"type":"image","data":"not base64!","mimeType":"image/png",{VENDOR}}}"#),
            format!(r#"{{"type":"vendor/block",{VENDOR}}}"#),
            "17.0".to_owned(),
        ];
        let members_text = format!(r#""content":[{}],{VENDOR},"isError":false"#, blocks.join(","));
        fake.reply("tools/call", move |_| result(modern, &members_text));
        let raw = [blocks[5].clone(), blocks[6].clone(), blocks[7].clone()];
        let results = stage.everyone(async |app, _| app.call_tool("s", "echo", "{}").await.unwrap());
        for result in results.await {
            assert_eq!(result.meta_json, r#"{"vendor/x":18446744073709551615}"#);
            assert!(result.extra_json.contains(r#""vendor":{"b":1.0,"a":null,"é":"\u00e9"}"#));
            let blocks: Vec<_> = result.content.into_iter().map(|block| block.block.unwrap()).collect();
            let mut whole = Vec::new();
            for block in blocks {
                match block {
                    Block::Text(text) => vendor(&text.extra_json),
                    Block::Image(image) => {
                        assert_eq!(image.data, [0, 1].as_slice());
                        vendor(&image.extra_json);
                    }
                    Block::Audio(audio) => {
                        assert_eq!(audio.data, [0, 1].as_slice());
                        vendor(&audio.extra_json);
                    }
                    Block::ResourceLink(link) => vendor(&link.extra_json),
                    Block::Resource(embedded) => {
                        vendor(&embedded.extra_json);
                        let resource = embedded.resource.unwrap();
                        vendor(&resource.extra_json);
                        let bytes = v1::resource_contents::Body::Blob(vec![0, 1].into());
                        assert_eq!(resource.body, Some(bytes));
                    }
                    Block::RawJson(text) => whole.push(text),
                }
            }
            assert_eq!(whole, raw);
        }

        let contents = format!(r#""contents":[{{"uri":"a:1","text":"t",{VENDOR}}},{{"uri":"a:2","blob":"!",{VENDOR}}}],{VENDOR}"#);
        fake.reply("resources/read", move |_| result(modern, &contents));
        let messages = format!(r#""description":"d","messages":[{{"role":"user","content":{{"type":"text","text":"t",{VENDOR}}},{VENDOR}}},"odd"],{VENDOR}"#);
        fake.reply("prompts/get", move |_| result(modern, &messages));
        let values = format!(r#""completion":{{"values":["v"],"total":2,"hasMore":true,{VENDOR}}},{VENDOR}"#);
        fake.reply("completion/complete", move |_| result(modern, &values));
        stage
            .everyone(async |app, _| {
                let read = app.read("s", "a:1").await.unwrap();
                assert_eq!(read.contents.len(), 2);
                read.contents.iter().for_each(|one| vendor(&one.extra_json));
                assert_eq!(members(&read.contents[1].extra_json)["blob"], "\"!\"");
                assert_eq!(read.meta_json, r#"{"vendor/x":18446744073709551615}"#);
                assert!(members(&read.extra_json).contains_key("vendor"));

                let prompt = app.prompt("s", "P", HashMap::new()).await.unwrap();
                vendor(&prompt.messages[0].extra_json);
                assert_eq!(prompt.meta_json, r#"{"vendor/x":18446744073709551615}"#);
                let odd = prompt.messages[1].content.clone().unwrap().block.unwrap();
                assert_eq!(odd, Block::RawJson("\"odd\"".to_owned()));

                let request = v1::CompleteRequest {
                    namespace: app.namespace(),
                    server_id: "s".to_owned(),
                    argument_name: "n".to_owned(),
                    reference: Some(v1::complete_request::Reference::PromptName("P".to_owned())),
                    ..Default::default()
                };
                let complete = app.prompts().complete(request).await.unwrap().into_inner();
                assert_eq!((complete.values.len(), complete.total, complete.has_more), (1, Some(2), true));
                assert_eq!(complete.meta_json, r#"{"vendor/x":18446744073709551615}"#);
                let extra = members(&complete.extra_json);
                vendor(&extra["completion"]);
                assert!(extra.contains_key("vendor"));
            })
            .await;
    })
    .await;
}

#[tokio::test]
async fn b28_the_protocols_own_meta_keys_cannot_be_forged() {
    both_eras(&[], async |stage, fake, modern| {
        for key in [
            "progressToken",
            "io.modelcontextprotocol/protocolVersion",
            "io.modelcontextprotocol/clientInfo",
            "io.modelcontextprotocol/clientCapabilities",
            "io.modelcontextprotocol/anything",
            "com.mcp.tools/x",
            "dev.modelcontextprotocol/x",
        ] {
            let mut call = stage.other().call("s", "echo", "{}");
            call.meta_json = json!({"vendor/ok": 1, key: "forged"}).to_string();
            let outcome = stage.other().call_with(call).await;
            let facts = ErrorFacts::expect(outcome, Code::InvalidArgument, "INVALID_FIELD");
            assert_eq!(facts.field, "call.meta_json", "{key}");
            assert!(facts.message.contains(key), "{facts:?}");
        }
        assert!(fake.seen_of("tools/call").is_empty());
        let given = stage.everyone(async |app, number| {
            let mut call = app.call("s", "echo", "{}");
            call.meta_json = format!(r#"{{"vendor/app":{number}.0,"plain":[1.10]}}"#);
            app.call_with(call).await.unwrap();
        });
        given.await;
        let calls = fake.seen_of("tools/call");
        assert_eq!(calls.len(), stage.apps.len());
        for seen in calls {
            let meta = &seen.params()["_meta"];
            assert!(seen.text().contains(r#""plain":[1.10]"#), "{}", seen.text());
            assert!(!meta["progressToken"].is_null());
            assert!(meta.get("traceparent").is_none(), "{meta}");
            assert_eq!(
                meta["io.modelcontextprotocol/protocolVersion"].is_string(),
                modern
            );
        }
        // The trace of an app goes on at the server: the one of its RPC, unless the call itself belongs to another.
        let trace = |number: usize| {
            format!("00-4bf92f3577b34da6a3ce929d0e0e473{number}-00f067aa0ba902b7-01")
        };
        let traced = stage.everyone(async |app, number| {
            for own in [
                "{}".to_owned(),
                json!({"traceparent": trace(9)}).to_string(),
            ] {
                let mut call = app.call("s", "echo", &format!("{{\"app\":{number}}}"));
                call.meta_json = own;
                let mut request = tonic::Request::new(v1::CallToolRequest { call: Some(call) });
                let value = trace(number).parse().unwrap();
                request.metadata_mut().insert("traceparent", value);
                app.tools().call_tool(request).await.unwrap();
            }
        });
        traced.await;
        for number in 0..stage.apps.len() {
            let own = format!("{{\"app\":{number}}}");
            let mine = fake.seen_of("tools/call").into_iter();
            let mine = mine.filter(|seen| seen.arguments() == own);
            let traces: Vec<_> = mine
                .map(|seen| seen.params()["_meta"]["traceparent"].clone())
                .collect();
            assert_eq!(traces, [trace(number), trace(9)]);
        }
    })
    .await;
}

#[tokio::test]
async fn b28_a_question_reaches_the_app_whole_and_the_answer_the_server() {
    const SCHEMA: &str = r#"{"type":"object","properties":{"z":{"type":"integer","maximum":9007199254740993,"x":1.0},"a":{"type":"string","enum":["u"],"enumNames":["U"]}},"x-order":["z"]}"#;
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        fake.reply("tools/call", |seen| {
            if seen.params().get("inputResponses").is_some() {
                return result(true, r#""content":[]"#);
            }
            let params = format!(r#"{{"mode":"form","message":"?","requestedSchema":{SCHEMA},{VENDOR}}}"#);
            let ask = format!(r#"{{"method":"elicitation/create","params":{params}}}"#);
            Reply::Text(format!(r#"{{"resultType":"input_required","inputRequests":{{"q":{ask}}},"requestState":"s"}}"#))
        });
        let mut spec = http_spec("S", &fake.url());
        spec.client_capabilities = Some(v1::ClientCapabilities {
            elicitation_form: true,
            ..Default::default()
        });
        stage.add("s", spec).await;
        let mut updates = stage.other().updates("").await;
        let call = stage.app().call_tool("s", "echo", "{}");
        let answer = async {
            let question = updates.pending().await;
            assert_eq!(question.requested_schema_json, SCHEMA);
            vendor(&question.request_json);
            let content = r#"{"z":9007199254740993,"a":"u"}"#;
            stage.other().accept(&question.id, content).await.unwrap();
            let second = fake.wait("the answer", |seen| seen.params().get("inputResponses").is_some());
            assert!(second.await.text().contains(&format!(r#""content":{content}"#)));
        };
        let (called, ()) = tokio::join!(call, answer);
        called.unwrap();
    })
    .await;
}

#[tokio::test]
async fn b31_a_result_is_never_refused_for_its_schema() {
    // What may be switched on is in `output_checks`, and hides nothing either.
    const CHECKED: &str = r#"{"name":"checked","inputSchema":{"type":"object"},"outputSchema":{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}}"#;
    let lists = &[("tools/list", "tools", CHECKED)];
    let results = [
        (r#""structuredContent":{"n":1}"#, false, Some(r#"{"n":1}"#)),
        (
            r#""structuredContent":{"n":"one"}"#,
            false,
            Some(r#"{"n":"one"}"#),
        ),
        (
            r#""structuredContent":{"oops":true},"isError":true"#,
            true,
            Some(r#"{"oops":true}"#),
        ),
        (r#""isError":true"#, true, None),
        (r#""vendor":1"#, false, None),
        (r#""structuredContent":0"#, false, Some("0")),
        (r#""structuredContent":[]"#, false, Some("[]")),
        (r#""structuredContent":null"#, false, Some("null")),
        (r#""structuredContent":false"#, false, Some("false")),
        (r#""structuredContent":"""#, false, Some("\"\"")),
    ];
    both_eras(lists, async |stage, fake, modern| {
        for (given, is_error, structured) in results {
            let text = format!(r#""content":[{{"type":"text","text":"said"}}],{given}"#);
            fake.reply("tools/call", move |_| result(modern, &text));
            let called = stage.everyone(async |app, _| app.call_tool("s", "checked", "{}").await);
            for outcome in called.await {
                let result = outcome.unwrap_or_else(|status| panic!("{given}: {status:?}"));
                assert_eq!(result.is_error, is_error, "{given}");
                assert_eq!(
                    result.structured_content_json.as_deref(),
                    structured,
                    "{given}"
                );
                assert_eq!(text_of(&result), "said", "{given}");
            }
        }
        fake.reply("tools/call", |_| {
            Reply::Error(-32602, "bad", json!({"path": ["n"]}))
        });
        let outcome = stage.other().call_tool("s", "checked", "{}").await;
        let facts = ErrorFacts::expect(outcome, Code::InvalidArgument, "UPSTREAM_ERROR");
        assert_eq!(facts.metadata["jsonrpc_message"], "bad");
        assert_eq!(facts.metadata["data_json"], r#"{"path":["n"]}"#);
    })
    .await;
}
