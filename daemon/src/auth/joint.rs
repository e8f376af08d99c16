//! Work that several wait for.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio_util::task::TaskTracker;

use crate::error::Error;

/// The outcome of work that is done once for all who wait for it.
pub(super) type Joint<T> = Shared<BoxFuture<'static, T>>;

/// Does work in a task of its own: it goes on if nobody waits. `over` is called at its end, before anybody hears of it and
/// also if it panics, which comes to `broken`.
pub(super) fn joint<T: Clone + Send + Sync + 'static>(
    tasks: &TaskTracker,
    work: impl Future<Output = T> + Send + 'static,
    over: impl FnOnce() + Send + 'static,
    broken: fn(Error) -> T,
) -> Joint<T> {
    let lost = move |_| broken(Error::internal("work on an authorization has ended early"));
    let work = tasks.spawn(work);
    let all = tasks.spawn(async move {
        let outcome = work.await.unwrap_or_else(lost);
        over();
        outcome
    });
    all.map(move |outcome| outcome.unwrap_or_else(lost))
        .boxed()
        .shared()
}
