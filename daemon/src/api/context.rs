//! Who asks, until when, and under which ids: what every RPC knows about its request, and how it keeps its deadline.
//!
//! Made by `api::serve` from the connection and the headers. Never blocks and never logs.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use http::HeaderMap;
use tokio::time::Sleep;

use crate::audit::Trail;
use crate::base::{AppConnection, Caller, Deadline};
use crate::error::{Error, Reason, Result};

/// Most that is kept back of a deadline for the way of the answer.
const TRAVEL: Duration = Duration::from_millis(20);
/// Longest request id that is taken over from a caller, in bytes.
const MAX_REQUEST_ID: usize = 128;

/// What the edge knows about one RPC. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Who asks.
    pub caller: Caller,
    /// The connection on which it is asked.
    pub app: AppConnection,
    /// When the answer is of no use any more (`grpc-timeout`, counted from the arrival of the headers).
    pub deadline: Deadline,
    /// Names the RPC in logs: the header `x-request-id` if it is 1 to 128 visible ASCII characters, else generated.
    pub request_id: Arc<str>,
    /// The header `traceparent` (W3C Trace Context) if it is well-formed.
    pub traceparent: Option<Arc<str>>,
    /// What the audit log is to know of it; `None` if it is not audited.
    pub trail: Option<Trail>,
}

impl RequestContext {
    /// The context that `api::serve` put into the request.
    ///
    /// # Errors
    /// INTERNAL if the request did not come through `api::serve`.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<Self> {
        request
            .extensions()
            .get::<Self>()
            .cloned()
            .ok_or_else(|| Error::internal("the request has no context"))
    }

    /// Reads the headers of a request that arrives now.
    ///
    /// # Errors
    /// INVALID_FIELD `grpc-timeout` if that header is malformed.
    pub fn from_headers(caller: &Caller, app: &AppConnection, headers: &HeaderMap) -> Result<Self> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let deadline = match headers.get("grpc-timeout") {
            None => Deadline::NONE,
            Some(value) => Deadline::after(in_time(timeout(value.as_bytes())?)),
        };
        let request_id = text("x-request-id")
            .filter(|id| id.len() <= MAX_REQUEST_ID && !id.is_empty())
            .filter(|id| id.bytes().all(|byte| byte.is_ascii_graphic()));
        Ok(Self {
            caller: caller.clone(),
            app: app.clone(),
            deadline,
            request_id: match request_id {
                Some(id) => id.into(),
                None => generate_id(),
            },
            traceparent: text("traceparent")
                .filter(|value| is_traceparent(value))
                .map(Arc::from),
            trail: None,
        })
    }

    /// Notes something for the audit log, if the RPC is audited.
    pub fn note(&self, note: impl FnOnce(&Trail)) {
        if let Some(trail) = &self.trail {
            note(trail);
        }
    }

    /// [`within`] the deadline of this RPC.
    ///
    /// # Errors
    /// Those of `work`, and DEADLINE_EXCEEDED.
    pub async fn within<T, E: From<Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        within(self.deadline, work).await
    }
}

fn generate_id() -> Arc<str> {
    let mut buffer = uuid::Uuid::encode_buffer();
    let id = uuid::Uuid::now_v7();
    Arc::from(&*id.simple().encode_lower(&mut buffer))
}

/// What may be used of a caller's time: its own clock runs too, and the answer must reach it before that is over.
fn in_time(timeout: Duration) -> Duration {
    timeout.saturating_sub((timeout / 20).min(TRAVEL))
}

/// The value of `grpc-timeout`: one to eight digits and a unit (gRPC over HTTP2, "Timeout").
fn timeout(value: &[u8]) -> Result<Duration> {
    let parsed = value.split_last().and_then(|(unit, digits)| {
        let in_form = (1..=8).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
        let count: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let duration = match unit {
            b'H' => Duration::from_secs(count * 3_600),
            b'M' => Duration::from_secs(count * 60),
            b'S' => Duration::from_secs(count),
            b'm' => Duration::from_millis(count),
            b'u' => Duration::from_micros(count),
            b'n' => Duration::from_nanos(count),
            _ => return None,
        };
        in_form.then_some(duration)
    });
    parsed.ok_or_else(|| {
        let shown = String::from_utf8_lossy(value.get(..value.len().min(32)).unwrap_or_default());
        Error::invalid(
            "grpc-timeout",
            format!("`{shown}` is no timeout; write 1 to 8 digits and one of H, M, S, m, u, n"),
        )
    })
}

/// `version-traceid-parentid-flags`, in lower-case hexadecimal; ids of zeros only are invalid.
fn is_traceparent(value: &str) -> bool {
    let parts: Vec<&str> = value.split('-').collect();
    let [version, trace, parent, flags] = parts.as_slice() else {
        return false;
    };
    let hex = |text: &str, length: usize| {
        text.len() == length
            && text
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let some = |text: &str| text.bytes().any(|byte| byte != b'0');
    hex(version, 2)
        && *version != "ff"
        && hex(trace, 32)
        && some(trace)
        && hex(parent, 16)
        && some(parent)
        && hex(flags, 2)
}

fn exceeded() -> Error {
    Error::new(
        Reason::DeadlineExceeded,
        "the deadline of the RPC is over; give it more time, or ask again",
    )
}

/// Runs `work` until the deadline; then it is dropped, which cancels it.
///
/// # Errors
/// Those of `work`, and DEADLINE_EXCEEDED. A deadline that is past already wins, unless `work` is ready at once.
pub async fn within<T, E: From<Error>>(
    deadline: Deadline,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    if deadline.instant().is_none() {
        return work.await;
    }
    tokio::select! {
        biased;
        result = work => result,
        () = deadline.elapsed() => Err(exceeded().into()),
    }
}

/// A stream that ends with DEADLINE_EXCEEDED at the deadline; the inner stream is dropped then.
pub fn bounded<S, T, E>(deadline: Deadline, stream: S) -> Bounded<S>
where
    S: Stream<Item = Result<T, E>>,
    E: From<Error>,
{
    Bounded {
        inner: Some(Box::pin(stream)),
        sleep: deadline
            .instant()
            .map(|instant| Box::pin(tokio::time::sleep_until(instant.into()))),
    }
}

/// See [`bounded`].
#[derive(Debug)]
pub struct Bounded<S> {
    inner: Option<Pin<Box<S>>>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<S, T, E> Stream for Bounded<S>
where
    S: Stream<Item = Result<T, E>>,
    E: From<Error>,
{
    type Item = Result<T, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        // The deadline first: a stream that always has something must end too.
        if let Some(sleep) = &mut this.sleep
            && sleep.as_mut().poll(cx).is_ready()
        {
            this.inner = None;
            return Poll::Ready(Some(Err(exceeded().into())));
        }
        let next = std::task::ready!(inner.as_mut().poll_next(cx));
        if next.is_none() {
            this.inner = None;
        }
        Poll::Ready(next)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::{StreamExt, stream};
    use http::{HeaderMap, HeaderValue};
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use tokio_util::sync::CancellationToken;

    use super::{RequestContext, bounded, timeout, within};
    use crate::base::{AppConnection, Caller, Clock, Deadline, Process};
    use crate::error::{Error, Reason, Result};

    const CALLER: Caller = Caller::Process(Process {
        uid: 1,
        gid: 2,
        pid: None,
    });

    #[test]
    fn timeouts_have_digits_and_a_unit() {
        for (text, expected) in [
            ("1H", Duration::from_hours(1)),
            ("2M", Duration::from_mins(2)),
            ("3S", Duration::from_secs(3)),
            ("99999999m", Duration::from_millis(99_999_999)),
            ("4u", Duration::from_micros(4)),
            ("0n", Duration::ZERO),
        ] {
            assert_eq!(timeout(text.as_bytes()), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "S",
            "1",
            "1s",
            "-1S",
            "+1S",
            "123456789S",
            "1 S",
            "1.5S",
            "١S",
        ] {
            let error = timeout(bad.as_bytes()).unwrap_err();
            assert_eq!(error.reason(), Reason::InvalidField, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_timeout_panics(bytes in any::<Vec<u8>>()) {
            let _ = timeout(&bytes);
        }

        #[test]
        fn milliseconds_come_out_as_they_went_in(count in 0_u64..=99_999_999) {
            prop_assert_eq!(timeout(format!("{count}m").as_bytes()), Ok(Duration::from_millis(count)));
        }
    }

    #[test]
    fn ids_are_taken_over_only_if_they_are_well_formed() {
        let context = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            let app = AppConnection::new(CALLER.user(), CancellationToken::new());
            RequestContext::from_headers(&CALLER, &app, &headers).unwrap()
        };
        assert_eq!(&*context("x-request-id", "abc-1").request_id, "abc-1");
        assert_eq!(context("x-request-id", "a b").request_id.len(), 32);
        assert_eq!(
            context("x-request-id", &"a".repeat(129)).request_id.len(),
            32
        );
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(
            context("traceparent", good).traceparent.as_deref(),
            Some(good)
        );
        for bad in [
            "x",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(context("traceparent", bad).traceparent, None, "{bad}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_at_the_deadline() {
        let never = std::future::pending::<Result<()>>();
        let error = within(Deadline::after(Duration::from_secs(5)), never).await;
        assert_eq!(error.unwrap_err().reason(), Reason::DeadlineExceeded);
        let past = Deadline::after(Duration::ZERO);
        assert_eq!(
            within(past, std::future::ready(Ok::<_, Error>(1))).await,
            Ok(1)
        );
        let unbounded = within(Deadline::NONE, std::future::ready(Ok::<_, Error>(2)));
        assert_eq!(unbounded.await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn streams_end_at_the_deadline_even_if_they_are_always_ready() {
        let idle = stream::iter([Ok::<_, Error>(1)]).chain(stream::pending());
        let items: Vec<_> = bounded(Deadline::after(Duration::from_secs(5)), idle)
            .collect()
            .await;
        assert_eq!(items.len(), 2);
        assert_eq!(
            items[1].as_ref().unwrap_err().reason(),
            Reason::DeadlineExceeded
        );

        let busy = stream::repeat_with(|| Ok::<_, Error>(1));
        let past = Clock.now().checked_sub(Duration::from_secs(1)).unwrap();
        let first = bounded(Deadline::at(past), busy).next().await;
        assert_eq!(
            first.unwrap().unwrap_err().reason(),
            Reason::DeadlineExceeded
        );
    }
}
