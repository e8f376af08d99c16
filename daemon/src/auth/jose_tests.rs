//! Tests of `jose`.

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{DecodingKey, Validation, decode, decode_header};
use serde_json::Value;
use url::Url;

use super::*;
use crate::model::auth::ClientAuth;

const NOW: Timestamp = Timestamp(1_700_000_000_999);

fn secret(text: &str) -> Secret<String> {
    Secret::new(text.to_owned())
}

fn part(token: &str, nth: usize) -> Value {
    let part = token.split('.').nth(nth).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

#[test]
fn a_proof_says_what_it_is_for_and_verifies_with_its_own_key() {
    let key = DpopKey::generate().unwrap();
    let url = Url::parse("https://H.example:443/mcp/?q=1#f").unwrap();
    let token = secret("token");
    let proof = key
        .proof("POST", &url, Some(&token), Some("n-1"), NOW)
        .unwrap();

    let header = part(&proof, 0);
    assert_eq!(
        (&header["typ"], &header["alg"]),
        (&"dpop+jwt".into(), &"ES256".into())
    );
    let jwk = header["jwk"].as_object().unwrap();
    let mut names: Vec<_> = jwk.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["crv", "kty", "x", "y"], "public members only");

    let mut rules = Validation::new(Algorithm::ES256);
    rules.required_spec_claims.clear();
    rules.validate_exp = false;
    let jwk: Jwk = serde_json::from_value(header["jwk"].clone()).unwrap();
    let verifies = DecodingKey::from_jwk(&jwk).unwrap();
    let claims = decode::<Value>(&proof, &verifies, &rules).unwrap().claims;
    assert_eq!(claims["htm"], "POST");
    assert_eq!(claims["htu"], "https://h.example/mcp/");
    assert_eq!(claims["iat"], 1_700_000_000);
    assert_eq!(claims["nonce"], "n-1");
    // SHA-256 of "token".
    assert_eq!(claims["ath"], "PEaenWxYddN6Q_NT1PiOYfz4EsZu7jRXRlpAsNpBU-A");
    assert_eq!(claims.get("content_digest"), None);
}

#[test]
fn proofs_are_fresh_and_hold_for_a_body() {
    let key = DpopKey::generate().unwrap();
    let url = Url::parse("https://h.example/mcp").unwrap();
    let plain = || part(&key.proof("GET", &url, None, None, NOW).unwrap(), 1);
    assert_ne!(plain()["jti"], plain()["jti"]);
    assert_eq!((plain().get("ath"), plain().get("nonce")), (None, None));
    let proof = key
        .proof_of_body(
            "POST",
            &url,
            &secret("token"),
            None,
            b"{\"hello\": \"world\"}\n",
            NOW,
        )
        .unwrap();
    // The example of RFC 9530.
    assert_eq!(
        part(&proof, 1)["content_digest"],
        "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"
    );
}

#[test]
fn a_key_survives_its_keeping() {
    let key = DpopKey::generate().unwrap();
    let kept = DpopKey::from_pem(&key.to_pem()).unwrap();
    let url = Url::parse("https://h.example/").unwrap();
    let header = |key: &DpopKey| decode_header(key.proof("GET", &url, None, None, NOW).unwrap());
    assert_eq!(header(&key).unwrap().jwk, header(&kept).unwrap().jwk);
    assert_ne!(key.to_pem(), DpopKey::generate().unwrap().to_pem());
    assert_eq!(format!("{key:?}"), "DpopKey(***)");
    assert!(
        DpopKey::from_pem(&secret(
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
        ))
        .is_err()
    );
}

fn pem(der: &[u8]) -> Secret<String> {
    let body = STANDARD.encode(der);
    Secret::new(format!(
        "-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n"
    ))
}

fn client(key: Secret<String>, algorithm: Option<&str>) -> Client {
    Client {
        issuer: "https://as.example".to_owned(),
        client_id: "me".to_owned(),
        auth: ClientAuth::PrivateKeyJwt,
        secret: None,
        private_key: Some(key),
        algorithm: algorithm.map(str::to_owned),
    }
}

#[test]
fn assertions_are_signed_with_every_kind_of_key() {
    let random = SystemRandom::new();
    let p256 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let p384 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &random).unwrap();
    let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let rsa_der = AsDer::<Pkcs8V1Der>::as_der(&rsa).unwrap();
    let p256_public =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, p256.as_ref()).unwrap();
    let p384_public =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, p384.as_ref()).unwrap();
    let ed_public = Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap();
    let rsa_public = DecodingKey::from_rsa_der(rsa.public_key().as_ref());
    let ec_public = |pair: &EcdsaKeyPair| DecodingKey::from_ec_der(pair.public_key().as_ref());
    for (der, algorithm, expected, public) in [
        (
            p256.as_ref(),
            None,
            Algorithm::ES256,
            ec_public(&p256_public),
        ),
        (
            p256.as_ref(),
            Some("ES256"),
            Algorithm::ES256,
            ec_public(&p256_public),
        ),
        (
            p384.as_ref(),
            None,
            Algorithm::ES384,
            ec_public(&p384_public),
        ),
        (
            ed.as_ref(),
            None,
            Algorithm::EdDSA,
            DecodingKey::from_ed_der(ed_public.public_key().as_ref()),
        ),
        (rsa_der.as_ref(), None, Algorithm::RS256, rsa_public.clone()),
        (
            rsa_der.as_ref(),
            Some("PS256"),
            Algorithm::PS256,
            rsa_public.clone(),
        ),
    ] {
        let now = crate::base::Clock.wall();
        let client = client(pem(der), algorithm);
        let signed = client_assertion(&client, "https://as.example", now).unwrap();
        let mut rules = Validation::new(expected);
        rules.set_audience(&["https://as.example"]);
        rules.set_issuer(&["me"]);
        rules.sub = Some("me".to_owned());
        let claims = decode::<Value>(signed.expose(), &public, &rules)
            .unwrap()
            .claims;
        assert_eq!(
            claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(),
            300
        );
        assert_eq!(part(signed.expose(), 0)["typ"], "JWT");
        let again = client_assertion(&client, "https://as.example", now).unwrap();
        assert_ne!(part(again.expose(), 1)["jti"], claims["jti"]);
    }
    for (key, algorithm, says) in [
        (pem(p256.as_ref()), Some("RS256"), "`RS256`"),
        (pem(p256.as_ref()), Some("ES384"), "`ES384`"),
        (
            pem(p256.as_ref()),
            Some("HS256"),
            "no known signature algorithm",
        ),
        (secret("not a key"), None, "PKCS #8"),
    ] {
        let error = client_assertion(&client(key, algorithm), "a", NOW).unwrap_err();
        assert_eq!(error.reason(), Reason::CredentialsRefused);
        assert!(error.message().contains(says), "{error}");
    }
    let mut none = client(secret(""), None);
    none.private_key = None;
    assert!(
        client_assertion(&none, "a", NOW)
            .unwrap_err()
            .message()
            .contains("private_key_pem")
    );
}
