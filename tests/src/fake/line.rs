//! A line to a fake that can go dead: nothing arrives any longer on either side, and nobody is told.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::FakeMcp;

/// A TCP line in front of a fake.
pub struct Line {
    addr: SocketAddr,
    path: String,
    dead: watch::Sender<bool>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Line {
    /// Opens a line on a free port of the loopback interface.
    pub async fn before(fake: &FakeMcp) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a port");
        let addr = listener.local_addr().expect("the bound address");
        let (behind, url) = (fake.addr(), fake.url());
        let path = url[url.rfind('/').unwrap_or(0)..].to_owned();
        let dead = watch::Sender::new(false);
        let state = dead.subscribe();
        let server = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let state = state.clone();
                connections.spawn(async move {
                    let Ok(far) = TcpStream::connect(behind).await else {
                        return;
                    };
                    let ((near_in, near_out), (far_in, far_out)) =
                        (near.into_split(), far.into_split());
                    let there = carry(near_in, far_out, state.clone());
                    let back = carry(far_in, near_out, state);
                    tokio::join!(there, back);
                });
            }
        });
        Self {
            addr,
            path,
            dead,
            server,
        }
    }

    /// The fake's URL by way of this line.
    pub fn url(&self) -> String {
        format!("http://{}{}", self.addr, self.path)
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Nothing passes any longer, on open connections and on new ones; none of them is closed.
    pub fn die(&self) {
        self.dead.send_replace(true);
    }

    /// New connections work again; what was open stays dead.
    pub fn revive(&self) {
        self.dead.send_replace(false);
    }
}

/// Carries bytes one way until either side hangs up. Once dead, a connection stays so until the line itself is gone.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut dead: watch::Receiver<bool>) {
    let mut chunk = vec![0; 16 * 1024];
    let passing = async {
        while let Ok(read @ 1..) = from.read(&mut chunk).await {
            if to.write_all(&chunk[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        Ok(_) = dead.wait_for(|dead| *dead) => {}
        () = passing => return,
    }
    // Both halves stay open, and nobody reads what comes.
    std::future::pending::<()>().await;
}
