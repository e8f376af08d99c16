//! Bounded waiting.

use std::future::Future;
use std::time::Duration;

/// How long a test waits for something that should happen soon. Generous: it is only used up when a
/// test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Awaits something and panics with `what` when it takes longer than [`PATIENCE`].
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let output = tokio::time::timeout(PATIENCE, future).await;
    output.unwrap_or_else(|_| panic!("waited {PATIENCE:?} in vain for: {what}"))
}

/// Asks again and again until the answer is `Some`; only for what cannot be awaited.
pub async fn eventually<T, F, Fut>(what: &str, bound: Duration, mut ask: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let attempts = async {
        let mut pause = Duration::from_millis(5);
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    };
    let answer = tokio::time::timeout(bound, attempts).await;
    answer.unwrap_or_else(|_| panic!("waited {bound:?} in vain for: {what}"))
}
