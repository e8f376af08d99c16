//! Signed tokens (RFC 7515 to 7519), proofs of possession (RFC 9449), and the keys for them.

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED,
    ECDSA_P384_SHA384_FIXED_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey,
    VerificationAlgorithm,
};
use aws_lc_rs::{digest, rand, rsa};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

/// Base64url without padding.
pub fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The bytes behind base64url without padding.
pub fn unb64(text: &str) -> Result<Vec<u8>, String> {
    let bytes = URL_SAFE_NO_PAD.decode(text);
    bytes.map_err(|cause| format!("`{text}` is no base64url: {cause}"))
}

/// SHA-256, in base64url.
pub fn sha256(text: &str) -> String {
    b64(digest::digest(&digest::SHA256, text.as_bytes()))
}

/// Text that nobody can guess and that was never used before.
pub fn random(prefix: &str) -> String {
    let mut bytes = [0; 24];
    rand::fill(&mut bytes).expect("random bytes");
    format!("{prefix}-{}", b64(bytes))
}

/// A public key for one algorithm.
#[derive(Clone, Debug)]
pub struct PublicKey {
    algorithm: &'static str,
    bytes: Vec<u8>,
}

/// A key pair whose private half the daemon is given.
pub struct KeyPair {
    /// The private key, PKCS #8 in PEM form.
    pub pem: String,
    /// The public key.
    pub public: PublicKey,
    der: Vec<u8>,
}

impl KeyPair {
    /// A new key for `ES256`, `ES384`, `RS256`, `PS256` or `EdDSA`.
    pub fn new(algorithm: &'static str) -> Self {
        let random = SystemRandom::new();
        let (der, bytes) = match algorithm {
            "ES256" | "ES384" => {
                let signing = if algorithm == "ES256" {
                    &ECDSA_P256_SHA256_FIXED_SIGNING
                } else {
                    &ECDSA_P384_SHA384_FIXED_SIGNING
                };
                let der = EcdsaKeyPair::generate_pkcs8(signing, &random).expect("a new key");
                let pair = EcdsaKeyPair::from_pkcs8(signing, der.as_ref()).expect("a new key");
                (der.as_ref().to_vec(), pair.public_key().as_ref().to_vec())
            }
            "RS256" | "PS256" => {
                let pair = RsaKeyPair::generate(rsa::KeySize::Rsa2048).expect("a new key");
                let der: aws_lc_rs::encoding::Pkcs8V1Der<'_> = pair.as_der().expect("its form");
                (der.as_ref().to_vec(), pair.public_key().as_ref().to_vec())
            }
            "EdDSA" => {
                let der = Ed25519KeyPair::generate_pkcs8v1(&random).expect("a new key");
                let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.as_ref());
                let pair = pair.expect("a new key");
                (der.as_ref().to_vec(), pair.public_key().as_ref().to_vec())
            }
            other => panic!("there are no keys for `{other}`"),
        };
        let text = STANDARD.encode(&der);
        let lines = text
            .as_bytes()
            .chunks(64)
            .map(|line| String::from_utf8_lossy(line) + "\n");
        let body: String = lines.collect();
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{body}-----END PRIVATE KEY-----\n");
        // Whatever form it is shown in, one line of it would be there.
        let line = text
            .as_bytes()
            .chunks(64)
            .nth(1)
            .unwrap_or(&text.as_bytes()[24..]);
        super::planted::plant(String::from_utf8_lossy(&line[..40]));
        Self {
            pem,
            public: PublicKey { algorithm, bytes },
            der,
        }
    }

    /// Signs claims; only with `ES256`.
    pub fn sign(&self, kind: &str, claims: &Value) -> String {
        self.sign_with(&json!({"typ": kind, "alg": "ES256"}), claims)
    }

    /// Signs claims under this header; only with `ES256`.
    pub fn sign_with(&self, header: &Value, claims: &Value) -> String {
        assert_eq!(self.public.algorithm, "ES256", "fakes sign with ES256 only");
        let signed = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &self.der).unwrap();
        let signature = pair.sign(&SystemRandom::new(), signed.as_bytes());
        format!("{signed}.{}", b64(signature.expect("a signature")))
    }

    /// The public key as a JWK; only with `ES256`.
    pub fn jwk(&self) -> Value {
        assert_eq!(self.public.algorithm, "ES256", "fakes sign with ES256 only");
        let (x, y) = self.public.bytes[1..].split_at(32);
        json!({"kty": "EC", "crv": "P-256", "x": b64(x), "y": b64(y)})
    }
}

/// A token in its three parts.
pub struct Jwt {
    /// What was signed how.
    pub header: Value,
    /// What it says.
    pub claims: Value,
    signed: String,
    signature: Vec<u8>,
}

impl Jwt {
    /// Takes a token apart, without looking at the signature.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<_> = text.split('.').collect();
        let [header, claims, signature] = parts[..] else {
            return Err(format!("`{text}` is no signed token"));
        };
        let json = |part: &str| -> Result<Value, String> {
            serde_json::from_slice(&unb64(part)?).map_err(|cause| cause.to_string())
        };
        Ok(Self {
            header: json(header)?,
            claims: json(claims)?,
            signed: format!("{header}.{claims}"),
            signature: unb64(signature)?,
        })
    }

    /// A claim that is text; empty if it is not there.
    pub fn claim(&self, name: &str) -> &str {
        self.claims[name].as_str().unwrap_or_default()
    }

    /// Whether it is signed with this key.
    pub fn verify(&self, key: &PublicKey) -> Result<(), String> {
        let algorithm: &dyn VerificationAlgorithm = match key.algorithm {
            "ES256" => &ECDSA_P256_SHA256_FIXED,
            "ES384" => &ECDSA_P384_SHA384_FIXED,
            "RS256" => &RSA_PKCS1_2048_8192_SHA256,
            "PS256" => &RSA_PSS_2048_8192_SHA256,
            _ => &ED25519,
        };
        if self.header["alg"] != key.algorithm {
            return Err(format!("signed as {}", self.header["alg"]));
        }
        let key = UnparsedPublicKey::new(algorithm, &key.bytes);
        let verdict = key.verify(self.signed.as_bytes(), &self.signature);
        verdict.map_err(|_| "the signature is wrong".to_owned())
    }

    /// Whether its time is now.
    pub fn timely(&self) -> Result<(), String> {
        let now = unix_now();
        match self.claims["exp"].as_i64() {
            Some(end) if end > now && end <= now + 3600 => {}
            other => return Err(format!("`exp` is {other:?}, now is {now}")),
        }
        match self.claims["iat"].as_i64() {
            Some(begin) if (begin - now).abs() > 60 => {
                Err(format!("`iat` is {begin}, now is {now}"))
            }
            _ => Ok(()),
        }
    }
}

/// Seconds since 1970.
pub fn unix_now() -> i64 {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
    i64::try_from(now.expect("a clock").as_secs()).expect("a date")
}

/// What a proof of possession says.
pub struct Proof {
    /// The thumbprint of its key (RFC 7638).
    pub thumbprint: String,
    /// Its own identifier.
    pub jti: String,
    /// The nonce in it; empty if there is none.
    pub nonce: String,
    /// The hash of the access token; empty if there is none.
    pub ath: String,
}

/// Verifies a proof for one request (RFC 9449 section 4.3), but for what its reader has to know more about.
pub fn proof(text: &str, method: &str, url: &str) -> Result<Proof, String> {
    let jwt = Jwt::parse(text)?;
    if jwt.header["typ"] != "dpop+jwt" {
        return Err(format!("`typ` is {}", jwt.header["typ"]));
    }
    let jwk = &jwt.header["jwk"];
    if jwk["kty"] != "EC" || jwk["crv"] != "P-256" {
        return Err(format!("the key is {jwk}"));
    }
    if jwk.get("d").is_some() {
        return Err("the proof holds the private key".to_owned());
    }
    let part = |name: &str| jwk[name].as_str().unwrap_or_default();
    let (x, y) = (part("x"), part("y"));
    let key = PublicKey {
        algorithm: "ES256",
        bytes: [vec![4], unb64(x)?, unb64(y)?].concat(),
    };
    jwt.verify(&key)?;
    for (name, wanted) in [("htm", method), ("htu", url)] {
        if jwt.claim(name) != wanted {
            return Err(format!("`{name}` is {}, not {wanted}", jwt.claims[name]));
        }
    }
    let now = unix_now();
    match jwt.claims["iat"].as_i64() {
        Some(begin) if (begin - now).abs() <= 60 => {}
        other => return Err(format!("`iat` is {other:?}, now is {now}")),
    }
    if jwt.claim("jti").is_empty() {
        return Err("there is no `jti`".to_owned());
    }
    let thumbprint = sha256(&format!(
        r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#
    ));
    Ok(Proof {
        thumbprint,
        jti: jwt.claim("jti").to_owned(),
        nonce: jwt.claim("nonce").to_owned(),
        ath: jwt.claim("ath").to_owned(),
    })
}
