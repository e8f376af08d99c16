//! What handles want of the actor.

use std::sync::Arc;

use super::super::Command;
use super::Actor;
use super::lists::Dirty;
use crate::catalog::Catalog;
use crate::mcp::state::{Event, State};
use crate::model::spec::ServerSpec;

impl Actor {
    /// Carries out a command.
    pub(super) async fn command(&mut self, command: Command) {
        match command {
            Command::Connect(done) => {
                // A pending sign-in is what is waited for: asking the server again would not change that.
                let waits = self.state == State::Authenticating
                    && self.authorization.borrow().waits_for_user();
                if !waits {
                    self.handle(Event::Connect { fresh: false }).await;
                }
                let _ = done.send(());
            }
            Command::Disconnect(done) => {
                self.disconnect().await;
                let _ = done.send(());
            }
            Command::LookAtAccount(done) => {
                self.authorization_changed().await;
                let _ = done.send(());
            }
            Command::Refresh(done) => {
                if let State::Ready { attempt } | State::Discovering { attempt } = self.state {
                    // A refresh wants what the server says now: a reading that runs already is superseded.
                    self.refreshers.push(done);
                    self.state = State::Discovering { attempt };
                    self.read_lists(Dirty::ALL);
                    self.publish().await;
                } else if self.link.is_some() || self.opening.is_some() {
                    self.refreshers.push(done);
                }
            }
            Command::Apply(record, done) => {
                let wanted = record.connect;
                let same_link = same_connection(&self.spec, &record.spec);
                if let Err(error) = self.account.apply(&record.spec).await {
                    tracing::error!(%error, "what was granted under other settings could not be forgotten");
                }
                self.authorized = self.authorization.borrow_and_update().clone();
                self.spec = record.spec;
                self.apply_rules();
                if same_link {
                    self.keep_session().await;
                    self.carry_question_policy();
                }
                if wanted {
                    self.handle(Event::Connect { fresh: !same_link }).await;
                } else {
                    self.disconnect().await;
                }
                // Whatever came of it, the changed rules are in force now.
                self.publish().await;
                let _ = done.send(());
            }
            Command::Rename(key, done) => {
                self.key = key;
                self.carry_new_key();
                self.keep_session().await;
                self.publish().await;
                let _ = done.send(());
            }
            Command::Stop(_) | Command::Suspend(_) => {} // handled where the loop ends
        }
    }

    /// Later questions of the server go by what the settings say now.
    fn carry_question_policy(&self) {
        if let Some(link) = &self.link {
            link.set_question_policy(self.spec.questions);
        }
        if let Some(apart) = &self.apart {
            apart.set_question_policy(self.spec.questions);
        }
    }

    /// Carries the new id to whatever holds the old one.
    fn carry_new_key(&mut self) {
        if let Some(link) = &self.link {
            link.rename(self.key.clone());
        }
        if let Some(apart) = &self.apart {
            apart.rename(&self.key);
        }
        let mut catalog = Catalog::clone(&self.catalog);
        catalog.rename(&self.key.id);
        self.catalog = Arc::new(catalog);
    }
}

/// Whether the same link serves both registrations.
fn same_connection(old: &ServerSpec, new: &ServerSpec) -> bool {
    old.transport == new.transport
        && old.auth == new.auth
        && old.protocol_version == new.protocol_version
        && old.capabilities == new.capabilities
        && old.roots == new.roots
        && old.isolation == new.isolation
}
