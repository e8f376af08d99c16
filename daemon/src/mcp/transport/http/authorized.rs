//! Requests with what authorizes them.

use http::header::WWW_AUTHENTICATE;
use reqwest::{RequestBuilder, Response, StatusCode};

use super::Http;
use crate::auth::{Pass, Tries, Verdict};
use crate::mcp::transport::Loss;

impl Http {
    /// Sends a request with what authorizes it. One that was refused because of that was not looked at, and is sent again
    /// with other credentials if there are any.
    pub(super) async fn ask(
        &self,
        method: &str,
        body: Option<&[u8]>,
        request: impl Fn() -> RequestBuilder,
    ) -> Result<Response, Loss> {
        let had_session = self.has_session();
        let mut tries = Tries::default();
        loop {
            let pass = match &self.account {
                Some(account) => account.authorize(method, &self.url, body).await,
                None => Ok(Pass::default()),
            };
            let pass = pass.map_err(Loss::not_sent)?;
            let sending = request().headers(pass.headers.clone()).send();
            let response = sending.await.map_err(|error| self.loss(&error))?;
            if let Some(account) = &self.account {
                account.answered(response.headers());
            }
            if response.status().is_success() {
                return Ok(response);
            }
            match self.judge(&pass, &mut tries, &response, had_session).await {
                Verdict::Again => {}
                Verdict::Failed(error) => {
                    let status = response.status().as_u16();
                    let error = error.with("http_status", status.to_string());
                    return Err(Loss::refused(error, status));
                }
                Verdict::NotOurs => {
                    let mut loss = self.refusal(response, had_session).await;
                    if let Some(account) = &self.account {
                        // A server may repeat what it was shown.
                        loss.error = loss.error.map_texts(|text| account.redact(text));
                    }
                    return Err(loss);
                }
            }
        }
    }

    /// Whether a refusal is about credentials, and what is done about it.
    fn judge<'a>(
        &'a self,
        pass: &'a Pass,
        tries: &'a mut Tries,
        response: &Response,
        had_session: bool,
    ) -> impl Future<Output = Verdict> + Send + 'a {
        let status = response.status();
        let headers = response.headers().clone();
        let about = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        // Some servers say 401 for a session that they have forgotten, and then without a challenge.
        let session = had_session && !headers.contains_key(WWW_AUTHENTICATE);
        async move {
            match &self.account {
                Some(account) if about && !session => {
                    let status = status.as_u16();
                    account.refused(pass, tries, status, &headers).await
                }
                _ => Verdict::NotOurs,
            }
        }
    }
}
