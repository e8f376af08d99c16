//! What sign-ins mean for the connection.

use super::{Actor, fault_of};
use crate::error::Error;
use crate::mcp::state::{Event, Fault, State};

impl Actor {
    /// A sign-in of an earlier run is pending: until somebody has been there, the server would only refuse us again.
    pub(super) async fn go_on_waiting(&mut self) {
        self.state = State::Authenticating;
        self.publish().await;
    }

    /// The fault behind a failed dial.
    pub(super) fn fault_of_dial(&self, error: &Error) -> Fault {
        match fault_of(error) {
            // Somebody signed in while the server was still refusing us.
            Fault::Unauthorized if self.authorization.borrow().signed_in > self.dialled_after => {
                Fault::Transient
            }
            fault => fault,
        }
    }

    /// A sign-in has begun, succeeded or ended, or somebody has signed out.
    pub(super) async fn authorization_changed(&mut self) {
        let now = self.authorization.borrow_and_update().clone();
        let before = std::mem::replace(&mut self.authorized, now.clone());
        let signed_in = now.signed_in > before.signed_in;
        let waiting = matches!(self.state, State::Authenticating | State::Failed { .. });
        if (signed_in && waiting) || (now.endings > before.endings && self.link.is_some()) {
            self.handle(Event::Connect { fresh: true }).await;
        }
        self.publish().await;
    }
}
