//! Reads the configuration again and puts into force what can be exchanged while the daemon runs.
//!
//! All or nothing: a configuration that is not acceptable changes nothing. One reload at a time.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use serde_json::Value;

use super::{Operation, declared};
use crate::base::{Clock, ServerKey};
use crate::config::Config;
use crate::error::{Error, Reason, Result};
use crate::registry::declared::{Change, Declared};
use crate::systemd;

/// Keys that hold at once; all others need a restart.
const EXCHANGED: &[&str] = &["access", "log.filter", "servers"];

/// What a reload did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reloaded {
    /// The keys that changed and hold now.
    pub applied: Vec<String>,
    /// The keys that differ from what the daemon runs with.
    pub restart: Vec<String>,
    /// What became of the servers in the configuration.
    pub servers: Vec<(ServerKey, Change)>,
}

impl Operation {
    /// Reads the configuration again and applies it, or only says what would be applied. The service manager is told.
    ///
    /// # Errors
    /// `INVALID_FIELD` with everything that is wrong; nothing is changed then. As
    /// [`Registry::declare`](crate::registry::Registry::declare).
    pub async fn reload(&self, validate_only: bool) -> Result<Reloaded> {
        let this = self.clone();
        // In a task of its own: a caller that goes away must not leave it half done.
        let reload = async move { this.reload_now(validate_only).await };
        let reload = self.0.parts.tasks.spawn(reload).await;
        reload.map_err(|cause| Error::internal(format!("the reload failed: {cause}")))?
    }

    /// The same for a caller that does not wait: what comes of it is in the log.
    pub fn reload_in_background(&self) {
        let this = self.clone();
        let reload = async move { this.reload_now(false).await };
        self.0.parts.tasks.spawn(reload);
    }

    async fn reload_now(&self, validate_only: bool) -> Result<Reloaded> {
        if validate_only {
            return self.exchange(true).await;
        }
        systemd::reloading();
        let outcome = self.exchange(false).await;
        match &outcome {
            Ok(done) => {
                tracing::info!(
                    applied = done.applied.join(", "),
                    needs_restart = done.restart.join(", "),
                    servers = done.servers.len(),
                    "the configuration was read again"
                );
            }
            Err(error) => {
                tracing::error!(%error, "the configuration was read again, and is not applied");
            }
        }
        if !self.is_draining() {
            systemd::ready("serving");
        }
        outcome
    }

    async fn exchange(&self, validate_only: bool) -> Result<Reloaded> {
        let parts = &self.0.parts;
        let mut running = self.0.running.lock().await;
        if self.is_draining() {
            return Err(Error::new(Reason::Draining, "the daemon is stopping"));
        }
        let sources = parts.sources.clone();
        let reading = move || -> Result<(Config, Vec<Declared>)> {
            let config = Config::load(&sources)
                .map_err(|error| Error::new(Reason::InvalidField, error.to_string()))?;
            let declared = declared::read(&config, sources.credentials().as_deref())?;
            Ok((config, declared))
        };
        let read = tokio::task::spawn_blocking(reading).await;
        let (config, declared) =
            read.map_err(|cause| Error::internal(format!("the reading failed: {cause}")))??;

        let mut done = Reloaded::default();
        for key in differing(&running, &config)? {
            if EXCHANGED.contains(&key.as_str()) {
                done.applied.push(key);
            } else {
                done.restart.push(key);
            }
        }
        done.servers = parts.registry.declare(declared, validate_only).await?;
        let servers = "servers".to_owned();
        // A secret in a file may have changed though the configuration has not.
        if !done.servers.is_empty() && !done.applied.contains(&servers) {
            done.applied.push(servers);
        }
        if validate_only {
            return Ok(done);
        }
        parts.log.configure(&config.log.filter)?;
        parts.access.replace(&config.access);
        running.log.filter = config.log.filter;
        running.access = config.access;
        running.servers = config.servers;
        let now = Clock.wall();
        self.0.read.store(now.0, Ordering::Relaxed);
        Ok(done)
    }
}

/// The keys whose values differ, in order.
fn differing(one: &Config, other: &Config) -> Result<Vec<String>> {
    let value = |config: &Config| {
        serde_json::to_value(config).map_err(|cause| {
            Error::internal(format!("the configuration cannot be compared: {cause}"))
        })
    };
    let mut keys = Vec::new();
    compare(&value(one)?, &value(other)?, "", &mut keys);
    Ok(keys)
}

fn compare(one: &Value, other: &Value, prefix: &str, keys: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let names: BTreeSet<_> = one.keys().chain(other.keys()).collect();
            for name in names {
                let key = if prefix.is_empty() {
                    name.clone()
                } else {
                    format!("{prefix}.{name}")
                };
                let of = |section: &serde_json::Map<_, _>| section.get(name).cloned();
                let (one, other) = (of(one), of(other));
                let (one, other) = (one.unwrap_or_default(), other.unwrap_or_default());
                compare(&one, &other, &key, keys);
            }
        }
        _ if one != other => keys.push(prefix.to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_are_named() {
        let one = Config::default();
        let mut other = one.clone();
        assert_eq!(differing(&one, &other).unwrap(), [""; 0]);
        other.log.filter = "debug".to_owned();
        other.limits.rounds += 1;
        other.vault.key_file = Some("/key".into());
        other.access = vec![crate::config::AccessRule {
            uid: None,
            gid: None,
            namespaces: Vec::new(),
        }];
        let keys = ["access", "limits.rounds", "log.filter", "vault.key_file"];
        assert_eq!(differing(&one, &other).unwrap(), keys);
        assert_eq!(differing(&other, &one).unwrap(), keys);
    }
}
