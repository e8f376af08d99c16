//! The user's browser.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use url::Url;

use crate::fake::tls;

/// How many redirects it follows.
const HOPS: usize = 10;

/// A page.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its URL.
    pub url: String,
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its text.
    pub text: String,
}

impl Page {
    /// Where it sends the browser, as an absolute URL; empty if nowhere.
    pub fn location(&self) -> String {
        let Some(location) = self.headers.get("location") else {
            return String::new();
        };
        let location = location.to_str().expect("a location is text");
        let base = Url::parse(&self.url).expect("a page has a URL");
        base.join(location).expect("a location is a URL").into()
    }

    /// A header's value; empty if it is not there.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().expect("a header is text"))
    }
}

/// A browser without a screen and without scripts.
#[derive(Clone)]
pub struct Browser(reqwest::Client);

impl Default for Browser {
    fn default() -> Self {
        Self::new()
    }
}

impl Browser {
    /// A browser that was never used.
    pub fn new() -> Self {
        let root = std::fs::read(tls::roots()).expect("the root of the tests");
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(Duration::from_secs(30))
            .no_proxy()
            .tls_certs_merge([reqwest::Certificate::from_pem(&root).expect("a root")])
            .build();
        Self(client.expect("a browser"))
    }

    /// One page, or `None` if it cannot be had.
    pub async fn try_get(&self, url: &str) -> Option<Page> {
        let answer = self.0.get(url).send().await.ok()?;
        Some(Page {
            url: answer.url().to_string(),
            status: answer.status(),
            headers: answer.headers().clone(),
            text: answer.text().await.ok()?,
        })
    }

    /// One page; redirects are not followed.
    pub async fn get(&self, url: &str) -> Page {
        let page = self.try_get(url).await;
        page.unwrap_or_else(|| panic!("the browser gets no answer from {url}"))
    }

    /// The page at the end of all redirects.
    pub async fn visit(&self, url: &str) -> Page {
        let mut page = self.get(url).await;
        for _ in 0..HOPS {
            let next = page.location();
            if next.is_empty() {
                return page;
            }
            page = self.get(&next).await;
        }
        panic!("more than {HOPS} redirects from {url}");
    }

    /// Where an authorization URL sends the browser when the user has decided.
    pub async fn decide(&self, auth_url: &str) -> String {
        let page = self.get(auth_url).await;
        let location = page.location();
        assert_ne!(location, "", "the browser is sent nowhere: {page:?}");
        location
    }
}
