//! Where browsers come back to after a sign-in: a listener on a loopback address (RFC 8252 section 7.3), which is there
//! only while somebody holds a lease on it.
//!
//! Knows no sign-in: what was visited is handed on, and the answer says which page is shown. Listens on loopback
//! addresses only, whatever is asked for, and never repeats what was in a query.

mod listener;
mod page;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;
use url::Url;

use self::listener::{Desk, Entry, Socket};
use crate::error::{Error, Reason, Result};

/// Visits that wait to be looked at; further visitors wait for a place.
const VISITS: usize = 16;
/// Draws of a free port that is free in both families.
const DRAWS: usize = 16;
/// Ports below this one are used only if the operator says so.
const FIRST_FREE_PORT: u16 = 1024;

/// How the listener is reached and what it shows; see section `auth` of the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallbackOptions {
    /// `127.0.0.1`, `[::1]`, or `localhost`, which listens on both families.
    pub host: String,
    /// The port to try first; 0: any.
    pub port: u16,
    /// The path. Any other is not found.
    pub path: String,
    /// The URL under which authorization servers know the listener, if that is not its own.
    pub public_url: Option<String>,
    /// Where the browser goes after a success, in place of a page.
    pub success_redirect: Option<String>,
    /// Where the browser goes after a failure, with `error` added to the query, in place of a page.
    pub error_redirect: Option<String>,
}

/// A browser that has come back from an authorization server, or something that pretends to be one.
pub struct Visit {
    /// The redirect URI with the query, as the authorization server knows it. Holds a code: `Debug` does not show it.
    pub url: String,
    /// What the browser is shown. Dropped: that the daemon is stopping.
    pub reply: oneshot::Sender<Landing>,
}

impl std::fmt::Debug for Visit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Visit").finish_non_exhaustive()
    }
}

/// What a visit has led to. Texts may come from anywhere: they are escaped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Landing {
    /// The daemon has its tokens.
    SignedIn {
        /// The server's name.
        server: String,
    },
    /// The sign-in had succeeded before.
    Already {
        /// The server's name.
        server: String,
    },
    /// The sign-in has failed.
    Failed {
        /// Why.
        message: String,
    },
    /// No sign-in waits for this visit.
    Unknown,
}

/// Opens the listener when it is needed. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Callback(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: CallbackOptions,
    tasks: TaskTracker,
    desk: Arc<Desk>,
    sockets: Mutex<Sockets>,
}

/// Every socket that listens, or has not quite stopped.
type Sockets = HashMap<SocketAddr, Entry>;

/// While it lives, browsers are welcome at its redirect URI.
#[derive(Debug)]
pub struct Lease {
    redirect_uri: String,
    sockets: Vec<Arc<Socket>>,
}

impl Lease {
    /// The URL that browsers come back to, exactly as authorization servers must hear of it.
    #[must_use]
    pub fn redirect_uri(&self) -> &str {
        &self.redirect_uri
    }

    /// Whether there is a listener: without one, the redirected URL has to be handed over by an app.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        !self.sockets.is_empty()
    }
}

/// Where a host spelling points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    V4,
    V6,
    Both,
}

impl Place {
    /// `None` for anything but the three spellings of this host.
    fn of(host: &str) -> Option<Self> {
        match host {
            "127.0.0.1" => Some(Self::V4),
            "[::1]" => Some(Self::V6),
            "localhost" => Some(Self::Both),
            _ => None,
        }
    }

    fn addresses(self) -> &'static [IpAddr] {
        const BOTH: [IpAddr; 2] = [
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ];
        let [v4, v6] = &BOTH;
        match self {
            Self::V4 => std::slice::from_ref(v4),
            Self::V6 => std::slice::from_ref(v6),
            Self::Both => &BOTH,
        }
    }
}

impl Callback {
    /// The callback with these options, and who comes there. Nothing listens yet.
    #[must_use]
    pub fn new(options: CallbackOptions, tasks: TaskTracker) -> (Self, mpsc::Receiver<Visit>) {
        let (visits, visitors) = mpsc::channel(VISITS);
        let desk = Arc::new(Desk::new(&options, visits));
        let callback = Self(Arc::new(Inner {
            options,
            tasks,
            desk,
            sockets: Mutex::default(),
        }));
        (callback, visitors)
    }

    /// Lets browsers come back: at the configured port, or at another one if that is taken.
    ///
    /// # Errors
    /// [`Reason::AuthorizationUnavailable`] if nothing can listen; or not at the configured port, if a proxy passes the
    /// callback on to that.
    pub async fn lease(&self) -> Result<Lease> {
        let Inner { options, .. } = &*self.0;
        let place = Place::of(&options.host).ok_or_else(|| {
            Error::internal(format!(
                "`auth.callback_host` is `{}`, which is no loopback host",
                options.host
            ))
        })?;
        let mut sockets = self.0.sockets.lock().await;
        if options.port != 0 {
            match self.hold(&mut sockets, place, options.port).await {
                Ok(held) => return self.leased(held),
                Err(cause) if options.public_url.is_some() => {
                    return Err(unavailable(format!(
                        "`auth.callback_url` is passed on to port {} of `{}`, and nothing can listen there ({cause}): free \
                         it, or change `auth.callback_port`",
                        options.port, options.host
                    )));
                }
                Err(cause) => {
                    tracing::warn!(port = options.port, %cause, "the callback uses another port");
                }
            }
        }
        let open: Vec<u16> = sockets
            .iter()
            .filter(|(_, entry)| entry.is_open())
            .map(|(address, _)| address.port())
            .collect();
        for port in open {
            if let Ok(held) = self.hold(&mut sockets, place, port).await {
                return self.leased(held);
            }
        }
        let mut last = io::Error::from(ErrorKind::AddrInUse);
        for _ in 0..DRAWS {
            match self.hold(&mut sockets, place, 0).await {
                Ok(held) => return self.leased(held),
                Err(cause) if cause.kind() == ErrorKind::AddrInUse => last = cause,
                Err(cause) => {
                    last = cause;
                    break;
                }
            }
        }
        Err(unavailable(format!(
            "nothing can listen at `{}` for the end of a sign-in ({last}): see `auth.callback_host`",
            options.host
        )))
    }

    /// Lets browsers come back to a redirect URI that is agreed upon already. Where it is not one of this callback, or
    /// its port is taken, the lease is one without a listener.
    pub async fn lease_again(&self, redirect_uri: &str) -> Lease {
        let mut sockets = Vec::new();
        if let Some((place, port)) = self.whereabouts(redirect_uri) {
            let mut known = self.0.sockets.lock().await;
            match self.hold(&mut known, place, port).await {
                Ok(held) => sockets = held,
                Err(cause) => tracing::warn!(
                    port,
                    %cause,
                    "nothing can listen for the end of a sign-in; it can be completed with CompleteSignIn"
                ),
            }
        }
        Lease {
            redirect_uri: redirect_uri.to_owned(),
            sockets,
        }
    }

    /// Where to listen for a redirect URI, if it is one of this callback.
    fn whereabouts(&self, redirect_uri: &str) -> Option<(Place, u16)> {
        let options = &self.0.options;
        if options.public_url.as_deref() == Some(redirect_uri) {
            return Some((Place::of(&options.host)?, options.port)).filter(|(_, port)| *port != 0);
        }
        let url = Url::parse(redirect_uri).ok()?;
        let ours = url.scheme() == "http"
            && url.path() == options.path
            && url.query().is_none()
            && url.fragment().is_none();
        let port = url.port_or_known_default()?;
        let allowed = port == options.port || port >= FIRST_FREE_PORT;
        let place = Place::of(url.host_str()?)?;
        (ours && allowed).then_some((place, port))
    }

    fn leased(&self, sockets: Vec<Arc<Socket>>) -> Result<Lease> {
        let options = &self.0.options;
        let first = sockets
            .first()
            .ok_or_else(|| Error::internal("a lease without a listener"))?;
        let own = || {
            let port = first.address().port();
            format!("http://{}:{port}{}", options.host, options.path)
        };
        Ok(Lease {
            redirect_uri: options.public_url.clone().unwrap_or_else(own),
            sockets,
        })
    }

    /// Listens at a place, on all of its addresses with the same port. Of a place with two families one may be missing
    /// on this host.
    async fn hold(
        &self,
        sockets: &mut Sockets,
        place: Place,
        port: u16,
    ) -> io::Result<Vec<Arc<Socket>>> {
        let mut held: Vec<Arc<Socket>> = Vec::new();
        let mut missing = None;
        for ip in place.addresses() {
            let port = held.first().map_or(port, |first| first.address().port());
            match self.acquire(sockets, SocketAddr::new(*ip, port)).await {
                Ok(socket) => held.push(socket),
                Err(cause) if is_missing(&cause) => missing = Some(cause),
                Err(cause) => return Err(cause),
            }
        }
        match missing {
            Some(cause) if held.is_empty() => Err(cause),
            _ => Ok(held),
        }
    }

    /// The socket at this address: the one that listens, or a new one, as soon as the one before it has stopped.
    async fn acquire(&self, sockets: &mut Sockets, address: SocketAddr) -> io::Result<Arc<Socket>> {
        if let Some(known) = sockets.get(&address) {
            if let Some(socket) = known.socket() {
                return Ok(socket);
            }
            known.stopped().await;
        }
        sockets.retain(|_, entry| !entry.has_stopped());
        let (socket, entry) =
            listener::open(address, Arc::clone(&self.0.desk), &self.0.tasks).await?;
        sockets.insert(socket.address(), entry);
        Ok(socket)
    }
}

/// Whether a family is not there on this host.
fn is_missing(cause: &io::Error) -> bool {
    let unsupported = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    cause.kind() == ErrorKind::AddrNotAvailable || cause.raw_os_error() == Some(unsupported)
}

fn unavailable(message: String) -> Error {
    Error::new(Reason::AuthorizationUnavailable, message)
}
