//! Tests of `token`: what an answer means.

use proptest::prelude::*;

use super::super::answer::{Asked, verdict};
use super::*;

#[tokio::test]
async fn loose_answers_are_understood() {
    let subject = URL_SAFE_NO_PAD.encode(json!({"sub": "user-1"}).to_string());
    for (extra, expires, scopes, subject) in [
        (json!({}), None, None, None),
        (
            json!({"token_type": "bearer", "expires_in": "600"}),
            Some(600),
            None,
            None,
        ),
        (
            json!({"token_type": "BEARER", "expires_in": 600.9}),
            Some(600),
            None,
            None,
        ),
        (
            json!({"token_type": null, "expires_in": null, "scope": null, "refresh_token": null}),
            None,
            None,
            None,
        ),
        (json!({"expires_in": 0}), None, None, None),
        (json!({"expires_in": -5}), None, None, None),
        (json!({"expires_in": "soon"}), None, None, None),
        (json!({"expires_in": 1e300}), None, None, None),
        (json!({"scope": ["a", "b"]}), None, Some("a b"), None),
        (json!({"scope": "a,b"}), None, Some("a b"), None),
        (json!({"scope": ""}), None, None, None),
        (
            json!({"refresh_token": "", "unknown": {"x": [1]}}),
            None,
            None,
            None,
        ),
        (
            json!({"id_token": format!("x.{subject}.y")}),
            None,
            None,
            Some("user-1"),
        ),
        (json!({"id_token": "nonsense"}), None, None, None),
    ] {
        let mut document = json!({"access_token": "t"});
        document
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        let text = document.to_string();
        // Neither the type of the content nor the exact status says anything.
        let site = Site::start(move |_, _| {
            message(201, "content-type: text/plain\r\n", &document.to_string())
        })
        .await;
        for tokens in [refresh_at(&site).await, workload_at(&site).await] {
            let tokens = tokens.unwrap_or_else(|failure| panic!("{text}: {failure}"));
            assert_eq!(
                tokens.expires_in,
                expires.map(Duration::from_secs),
                "{text}"
            );
            assert_eq!(tokens.scopes, scopes.map(Scopes::parse), "{text}");
            assert_eq!(tokens.subject.as_deref(), subject, "{text}");
            assert_eq!((tokens.refresh_token, tokens.bound), (None, false));
        }
    }
}

#[tokio::test]
async fn only_an_error_that_is_one_condemns_anything() {
    let oauth = |code: &str| json!({"error": code, "error_description": "because"}).to_string();
    for (status, body, expected) in [
        (400, oauth("invalid_grant"), "grant"),
        (401, oauth("invalid_grant"), "grant"),
        (200, oauth("bad_refresh_token"), "grant"),
        (200, oauth("bad_verification_code"), "grant"),
        (401, oauth("invalid_client"), "client"),
        (400, oauth("unauthorized_client"), "client"),
        (200, oauth("incorrect_client_credentials"), "client"),
        (400, oauth("invalid_scope"), "refused"),
        (400, oauth("invalid_request"), "refused"),
        (400, oauth("invalid_target"), "refused"),
        (400, oauth("temporarily_unavailable"), "unavailable"),
        (400, oauth("use_dpop_nonce"), "refused"),
        (500, oauth("invalid_grant"), "unavailable"),
        (502, "<html>bad gateway".to_owned(), "unavailable"),
        (530, String::new(), "unavailable"),
        (429, oauth("invalid_grant"), "unavailable"),
        (408, String::new(), "unavailable"),
        (400, String::new(), "unavailable"),
        (401, "unauthorized".to_owned(), "unavailable"),
        (403, "<html>blocked".to_owned(), "unavailable"),
        (404, "{}".to_owned(), "unavailable"),
        (
            400,
            json!({"error": {"code": 400}}).to_string(),
            "unavailable",
        ),
        (200, "<html>hello".to_owned(), "unavailable"),
        (200, String::new(), "unavailable"),
        (200, "{}".to_owned(), "unavailable"),
        (200, "[]".to_owned(), "unavailable"),
        (200, json!({"access_token": ""}).to_string(), "unavailable"),
        (200, json!({"access_token": 7}).to_string(), "unavailable"),
        (
            200,
            json!({"access_token": "a b"}).to_string(),
            "unavailable",
        ),
        (
            200,
            json!({"access_token": "t", "refresh_token": 7}).to_string(),
            "unavailable",
        ),
        (
            200,
            json!({"access_token": "t", "token_type": "mac"}).to_string(),
            "refused",
        ),
        (
            200,
            json!({"access_token": "t", "token_type": "DPoP"}).to_string(),
            "refused",
        ),
    ] {
        let text = body.clone();
        let site = Site::start(move |_, _| message(status, "", &text)).await;
        for failure in [
            refresh_at(&site).await.unwrap_err(),
            workload_at(&site).await.unwrap_err(),
        ] {
            assert_eq!(kind(&failure), expected, "{status} {body}: {failure}");
            if expected == "unavailable" {
                assert_eq!(failure.error().reason(), Reason::AuthorizationUnavailable);
            }
        }
        assert_eq!(site.seen().len(), 2, "nothing is repeated");
    }
    let late = Site::start(|_, _| message(429, "retry-after: 2\r\n", "")).await;
    let failure = refresh_at(&late).await.unwrap_err();
    assert_eq!(failure.error().retry_delay(), Some(Duration::from_secs(2)));
    let reset = Site::start(|_, _| String::new()).await;
    assert_eq!(kind(&refresh_at(&reset).await.unwrap_err()), "unavailable");
}

#[tokio::test]
async fn what_was_sent_is_not_shown() {
    let echo = Site::start(|_, request| {
        let said = format!(
            "you sent {} and {:?}\r\n\u{7}",
            request.body,
            request.header("authorization")
        );
        answer(
            400,
            &json!({"error": "invalid_grant", "error_description": said}),
        )
    })
    .await;
    let mut shown = Vec::new();
    for auth in ClientAuth::ALL {
        shown.push(redeem_at(&echo, auth).await.unwrap_err());
        let assertion = echo.seen().last().unwrap().field("client_assertion");
        if let Some(assertion) = assertion {
            let text = shown.last().unwrap().error().message();
            assert!(!text.contains(&assertion[..40]), "{text}");
        }
    }
    shown.push(refresh_at(&echo).await.unwrap_err());
    shown.push(workload_at(&echo).await.unwrap_err());
    let pair = STANDARD.encode("me+%3A%29:p%2Fw%2B+%25%3A");
    for failure in shown {
        let text = failure.error().message();
        assert!(
            text.contains("invalid_grant") && text.contains("***"),
            "{text}"
        );
        for secret in [
            "the-code",
            "the-verifier",
            "the-refresh-token",
            "the-assertion",
            "p/w+",
            "p%2Fw",
            &pair,
        ] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        assert!(
            text.len() < 600 && !text.chars().any(char::is_control),
            "{text}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_answer_makes_it_fail(status in 200_u16..600, body in "[{}\\[\\]\":,a-z_0-9 ]{0,80}") {
        let url = url::Url::parse("https://as.example/token").unwrap();
        let asked = Asked {
            url: &url,
            issuer: "https://as.example",
            reason: Reason::SignInFailed,
            proven: false,
            secrets: Vec::new(),
        };
        let reply = crate::auth::web::Reply {
            status: http::StatusCode::from_u16(status).unwrap(),
            headers: http::HeaderMap::new(),
            body: body.into_bytes(),
            cut: false,
        };
        let _ = verdict(reply, &asked);
    }
}
