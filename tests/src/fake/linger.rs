//! A connection that is read to its end after it was said goodbye to (RFC 9112 section 9.6): a server that closes it at once
//! may have it reset, and with it goes what the client has not read yet, such as the goodbye.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::wait::PATIENCE;

/// Closes at once, unless it is told to linger.
pub(super) struct Lingering {
    stream: Option<TcpStream>,
    linger: Arc<AtomicBool>,
}

impl Lingering {
    /// The connection, and what tells it to linger.
    pub(super) fn new(stream: TcpStream) -> (Self, Arc<AtomicBool>) {
        let linger = Arc::new(AtomicBool::new(false));
        let this = Self {
            stream: Some(stream),
            linger: Arc::clone(&linger),
        };
        (this, linger)
    }

    fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(self.stream.as_mut().expect("it is taken by the drop only"))
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let lingers = self.linger.load(Ordering::SeqCst);
        let (Some(mut stream), Ok(runtime)) =
            (self.stream.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        if lingers {
            runtime.spawn(async move {
                let mut rest = [0; 4096];
                let reading = async { while matches!(stream.read(&mut rest).await, Ok(1..)) {} };
                let _ended = tokio::time::timeout(PATIENCE, reading).await;
            });
        }
    }
}

impl AsyncRead for Lingering {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().stream().poll_read(context, buffer)
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().stream().poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream().poll_shutdown(context)
    }
}
