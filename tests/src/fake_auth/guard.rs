//! What stands before a protected MCP server.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{FakeAuth, jose, planted};
use crate::fake::{FakeMcp, Reply, Seen};

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// Where the metadata of the resource are (RFC 9728).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metadata {
    /// At the well-known place of the endpoint's path.
    Path,
    /// At the well-known place of the origin.
    Root,
    /// At this path.
    At(&'static str),
    /// Nowhere.
    Nowhere,
}

/// What is wanted beside a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DpopRule {
    /// A proof for tokens that are bound.
    IfBound,
    /// A bound token with a proof.
    Required,
}

/// The rules of a guard. All can be changed while it stands.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Where the metadata of the resource are.
    pub metadata: Metadata,
    /// Whether challenges say where they are.
    pub named: bool,
    /// Members of the metadata that are different, or missing if null.
    pub document: Map<String, Value>,
    /// Further documents by path.
    pub documents: HashMap<String, Value>,
    /// The resource identifier.
    pub resource: String,
    /// The scopes that the metadata name.
    pub scopes_supported: Option<&'static str>,
    /// The scopes that a challenge names which answers a request without a token.
    pub scope: Option<&'static str>,
    /// The scopes that are needed, by the name of a tool or a method.
    pub needs: HashMap<&'static str, &'static str>,
    /// Further members of every challenge, as text.
    pub more: &'static str,
    /// Challenges that are sent with 401 in place of the right ones.
    pub challenges: Option<Vec<String>>,
    /// Challenges that are sent with 403 in place of the right ones.
    pub refusals: Option<Vec<String>>,
    /// What is wanted beside a token.
    pub dpop: DpopRule,
    /// The nonce that proofs must hold.
    pub nonce: Option<String>,
    /// Whether everybody may pass.
    pub open: bool,
}

struct Inner {
    origin: String,
    path: String,
    rules: Mutex<Rules>,
    auths: Mutex<Vec<FakeAuth>>,
    faults: Mutex<Vec<String>>,
    proofs: Mutex<HashSet<String>>,
    refused: Mutex<Vec<u16>>,
    tokens: Mutex<Vec<String>>,
}

/// Lets only those pass whom an authorization server permits it.
#[derive(Clone)]
pub struct Guard(Arc<Inner>);

impl Guard {
    /// Protects a server.
    pub fn before(fake: &FakeMcp, auth: &FakeAuth) -> Self {
        Self::at(&fake.origin(), fake, auth)
    }

    /// Protects a server that is known by this origin.
    pub fn at(origin: &str, fake: &FakeMcp, auth: &FakeAuth) -> Self {
        let path = fake.url()[fake.origin().len()..].to_owned();
        let (origin, url) = (origin.to_owned(), format!("{origin}{path}"));
        let guard = Self(Arc::new(Inner {
            origin,
            path,
            rules: Mutex::new(Rules {
                metadata: Metadata::Path,
                named: true,
                document: Map::new(),
                documents: HashMap::new(),
                resource: url.clone(),
                scopes_supported: None,
                scope: None,
                needs: HashMap::new(),
                more: "",
                challenges: None,
                refusals: None,
                dpop: DpopRule::IfBound,
                nonce: None,
                open: false,
            }),
            auths: Mutex::new(vec![auth.clone()]),
            faults: Mutex::default(),
            proofs: Mutex::default(),
            refused: Mutex::default(),
            tokens: Mutex::default(),
        }));
        auth.shape(|shape| shape.resources.push(url));
        let inner = Arc::clone(&guard.0);
        fake.guard_with(move |seen| std::future::ready(inner.look(&seen)));
        guard
    }

    /// Changes the rules.
    pub fn rules(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.0.rules.lock().unwrap());
    }

    /// Calls the resource by another name, here and at its authorization servers.
    pub fn rename(&self, resource: &str) {
        self.rules(|rules| resource.clone_into(&mut rules.resource));
        for auth in self.0.auths.lock().unwrap().iter() {
            auth.shape(|shape| shape.resources = vec![resource.to_owned()]);
        }
    }

    /// From now on other authorization servers give out tokens.
    pub fn trust_only(&self, auths: &[&FakeAuth]) {
        let resource = self.0.rules.lock().unwrap().resource.clone();
        for auth in auths {
            auth.shape(|shape| shape.resources.push(resource.clone()));
        }
        let auths = auths.iter().map(|&auth| auth.clone()).collect();
        *self.0.auths.lock().unwrap() = auths;
    }

    /// Where the metadata of the resource are, if they are somewhere.
    pub fn metadata_url(&self) -> String {
        let metadata = self.0.rules.lock().unwrap().metadata;
        format!("{}{}", self.0.origin, self.0.metadata_path(metadata))
    }

    /// The statuses of all refusals.
    pub fn refused(&self) -> Vec<u16> {
        self.0.refused.lock().unwrap().clone()
    }

    /// The tokens that were shown to it, each once, in order.
    pub fn tokens(&self) -> Vec<String> {
        self.0.tokens.lock().unwrap().clone()
    }

    /// What was wrong with requests, and forgets it.
    pub fn take_faults(&self) -> Vec<String> {
        std::mem::take(&mut self.0.faults.lock().unwrap())
    }

    /// Nothing was wrong with any request.
    #[track_caller]
    pub fn assert_clean(&self) {
        let faults = self.take_faults();
        assert!(faults.is_empty(), "{faults:#?}");
    }
}

/// A document.
fn json(document: &Value) -> Reply {
    let kind = ("content-type", "application/json".to_owned());
    Reply::Raw(200, vec![kind], document.to_string().into())
}

impl Inner {
    fn metadata_path(&self, metadata: Metadata) -> String {
        match metadata {
            Metadata::Path => format!("{WELL_KNOWN}{}", self.path),
            Metadata::Root => WELL_KNOWN.to_owned(),
            Metadata::At(path) => path.to_owned(),
            Metadata::Nowhere => String::new(),
        }
    }

    fn fault(&self, what: String) {
        self.faults.lock().unwrap().push(what);
    }

    /// [`Reply::Default`] lets pass.
    fn look(&self, seen: &Seen) -> Reply {
        let rules = self.rules.lock().unwrap().clone();
        let path = seen.path.split('?').next().unwrap_or_default();
        if let Some(document) = rules.documents.get(path) {
            return json(document);
        }
        if path == self.metadata_path(rules.metadata) {
            if !seen.header("authorization").is_empty() {
                self.fault("a token was shown to who asks for metadata".to_owned());
            }
            return json(&self.document(&rules));
        }
        let endpoint = path.trim_end_matches('/') == self.path || path == "/messages";
        if !endpoint {
            return Reply::Raw(404, Vec::new(), Bytes::new());
        }
        if seen.path.contains("access_token") {
            self.fault("a token is in the URL".to_owned());
        }
        if rules.open {
            return Reply::Default;
        }
        match self.judge(&rules, seen) {
            Ok(()) => Reply::Default,
            Err((status, challenges)) => {
                self.refused.lock().unwrap().push(status);
                let mut headers: Vec<_> = challenges
                    .into_iter()
                    .map(|challenge| ("www-authenticate", challenge))
                    .collect();
                if let Some(nonce) = rules.nonce {
                    headers.push(("dpop-nonce", nonce));
                }
                Reply::Raw(status, headers, Bytes::new())
            }
        }
    }

    fn document(&self, rules: &Rules) -> Value {
        let auths = self.auths.lock().unwrap();
        let issuers: Vec<_> = auths.iter().map(FakeAuth::issuer).collect();
        let mut all = json!({
            "resource": rules.resource,
            "authorization_servers": issuers,
            "bearer_methods_supported": ["header"],
        });
        if let Some(scopes) = rules.scopes_supported {
            all["scopes_supported"] = scopes.split(' ').collect();
        }
        for (name, value) in &rules.document {
            all[name] = value.clone();
        }
        if let Some(members) = all.as_object_mut() {
            members.retain(|_, value| !value.is_null());
        }
        all
    }

    /// The status and the challenges of a refusal.
    fn judge(&self, rules: &Rules, seen: &Seen) -> Result<(), (u16, Vec<String>)> {
        let header = seen.header("authorization");
        let (scheme, token) = header.split_once(' ').unwrap_or_default();
        let bound = scheme.eq_ignore_ascii_case("dpop");
        if token.is_empty() || !(bound || scheme.eq_ignore_ascii_case("bearer")) {
            return Err((401, self.challenges(rules, "")));
        }
        {
            let mut tokens = self.tokens.lock().unwrap();
            if !tokens.iter().any(|known| known == token) {
                tokens.push(token.to_owned());
            }
        }
        let invalid = || (401, self.challenges(rules, "invalid_token"));
        let auths = self.auths.lock().unwrap().clone();
        let permitted = auths.iter().find_map(|auth| auth.check(token).ok());
        let Some(permitted) = permitted else {
            if !auths.iter().any(|auth| auth.issued(token)) {
                planted::plant_if_long(token);
                self.fault("a token that is from somewhere else".to_owned());
            }
            return Err(invalid());
        };
        if permitted.resource != rules.resource && !permitted.resource.is_empty() {
            self.fault(format!("a token for `{}`", permitted.resource));
            return Err(invalid());
        }
        let is_bound = !permitted.thumbprint.is_empty();
        if is_bound != bound {
            self.fault(format!("a token with the scheme `{scheme}`"));
            return Err(invalid());
        }
        if rules.dpop == DpopRule::Required && !is_bound {
            return Err((401, vec!["DPoP algs=\"ES256\"".to_owned()]));
        }
        if bound {
            self.possession(rules, seen, token, &permitted.thumbprint)?;
        }
        let wanted = match seen.method() {
            "tools/call" => seen.tool(),
            method => method,
        };
        let needs = rules
            .needs
            .get(wanted)
            .or_else(|| rules.needs.get(seen.method()));
        let Some(needs) = needs else {
            return Ok(());
        };
        let has = |scope: &str| permitted.scopes.iter().any(|known| known == scope);
        if needs.split(' ').all(has) {
            return Ok(());
        }
        let challenges = rules.refusals.clone().unwrap_or_else(|| {
            vec![self.challenge(rules, "Bearer", "insufficient_scope", Some(needs))]
        });
        Err((403, challenges))
    }

    fn possession(
        &self,
        rules: &Rules,
        seen: &Seen,
        token: &str,
        thumbprint: &str,
    ) -> Result<(), (u16, Vec<String>)> {
        let url = format!(
            "{}{}",
            self.origin,
            seen.path.split('?').next().unwrap_or_default()
        );
        let judged = jose::proof(seen.header("dpop"), seen.http.as_str(), &url).and_then(|proof| {
            if proof.thumbprint != thumbprint {
                return Err("the key of another token".to_owned());
            }
            if proof.ath != jose::sha256(token) {
                return Err(format!("`ath` is `{}`", proof.ath));
            }
            if !self.proofs.lock().unwrap().insert(proof.jti.clone()) {
                return Err(format!("`jti` {} was used before", proof.jti));
            }
            Ok(proof)
        });
        let proof = judged.map_err(|fault| {
            self.fault(format!("proof: {fault}"));
            (401, vec!["DPoP error=\"invalid_dpop_proof\"".to_owned()])
        })?;
        match &rules.nonce {
            Some(nonce) if *nonce != proof.nonce => {
                Err((401, vec!["DPoP error=\"use_dpop_nonce\"".to_owned()]))
            }
            _ => Ok(()),
        }
    }

    fn challenges(&self, rules: &Rules, error: &str) -> Vec<String> {
        rules.challenges.clone().unwrap_or_else(|| {
            let scheme = match rules.dpop {
                DpopRule::IfBound => "Bearer",
                DpopRule::Required => "DPoP",
            };
            vec![self.challenge(rules, scheme, error, rules.scope)]
        })
    }

    fn challenge(&self, rules: &Rules, scheme: &str, error: &str, scope: Option<&str>) -> String {
        let mut members = Vec::new();
        if !error.is_empty() {
            members.push(format!("error=\"{error}\""));
        }
        if rules.named && rules.metadata != Metadata::Nowhere {
            let path = self.metadata_path(rules.metadata);
            members.push(format!("resource_metadata=\"{}{path}\"", self.origin));
        }
        if let Some(scope) = scope {
            members.push(format!("scope=\"{scope}\""));
        }
        if !rules.more.is_empty() {
            members.push(rules.more.to_owned());
        }
        format!("{scheme} {}", members.join(", "))
            .trim_end()
            .to_owned()
    }
}
