//! What became of every call: begun once, ended once, carried out at most once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

/// Reasons that promise that the server has not been asked.
const UNTOUCHED: &[&str] = &[
    "UPSTREAM_UNREACHABLE",
    "NOT_CONNECTED",
    "SERVER_NOT_FOUND",
    "NAMESPACE_NOT_FOUND",
    "TOO_MANY_CALLS",
];
/// Reasons that no weather upstream explains.
const UNEXPECTED: &[&str] = &["INTERNAL", "STORE_FAILED", "DRAINING", "INVALID_FIELD"];
/// Failures that are kept with their details.
const KEPT: usize = 50;

/// The calls of a run. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    started: u64,
    ended: u64,
    outcomes: BTreeMap<String, u64>,
    events: BTreeMap<String, u64>,
    /// The first message of every reason.
    examples: BTreeMap<String, String>,
    /// How often a server was asked to carry out a call.
    executed: HashMap<u64, u32>,
    /// Calls that ended with a promise that no server has seen them.
    untouched: Vec<(u64, String)>,
    failures: Vec<String>,
    failure_count: u64,
}

/// A call that has begun. It ends once: dropping it is the end of a call that was given up.
pub(crate) struct Ticket {
    ledger: Ledger,
    /// Its number, which its arguments carry.
    pub(crate) id: u64,
    act: &'static str,
    open: bool,
}

impl Ledger {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap()
    }

    /// Begins a call.
    pub(crate) fn start(&self, act: &'static str) -> Ticket {
        let mut book = self.book();
        book.started += 1;
        Ticket {
            ledger: self.clone(),
            id: book.started,
            act,
            open: true,
        }
    }

    /// A server was asked to carry out this call.
    pub(crate) fn executed(&self, id: u64) {
        let count = {
            let mut book = self.book();
            let count = book.executed.entry(id).or_default();
            *count += 1;
            *count
        };
        if count > 1 {
            self.fail(format!("call {id} was carried out {count} times"));
        }
    }

    /// Counts something that happened.
    pub(crate) fn event(&self, what: &str) {
        *self.book().events.entry(what.to_owned()).or_default() += 1;
    }

    /// Something that must not be.
    pub(crate) fn fail(&self, details: String) {
        println!("FAILURE {details}");
        let mut book = self.book();
        book.failure_count += 1;
        if book.failures.len() < KEPT {
            book.failures.push(details);
        }
    }

    /// Calls that have begun, and calls that have ended.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let book = self.book();
        (book.started, book.ended)
    }

    /// The first message of a reason.
    pub(crate) fn example(&self, reason: &str) -> Option<String> {
        self.book().examples.get(reason).cloned()
    }

    /// How the calls ended, and what else happened.
    pub(crate) fn tables(&self) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
        let book = self.book();
        (book.outcomes.clone(), book.events.clone())
    }

    /// Compares promises with what servers saw, and returns the number of failures and the first of them.
    pub(crate) fn close(&self) -> (u64, Vec<String>) {
        let broken: Vec<String> = {
            let book = self.book();
            let seen = book.untouched.iter();
            seen.filter(|(id, _)| book.executed.contains_key(id))
                .map(|(id, why)| format!("call {id} ended with {why}, but a server has seen it"))
                .collect()
        };
        for failure in broken {
            self.fail(failure);
        }
        let book = self.book();
        (book.failure_count, book.failures.clone())
    }
}

impl Ticket {
    fn end(&mut self, outcome: String) {
        self.open = false;
        let mut book = self.ledger.book();
        book.ended += 1;
        *book.outcomes.entry(outcome).or_default() += 1;
    }

    /// It has the result that it should have; `watched` if its server tells at once what it carries out.
    pub(crate) fn result(mut self, watched: bool) {
        self.end(format!("result of `{}`", self.act));
        if watched && !self.ledger.book().executed.contains_key(&self.id) {
            let details = format!("call {} ({}) has a result of no server", self.id, self.act);
            self.ledger.fail(details);
        }
    }

    /// It ended with a typed error.
    pub(crate) fn error(mut self, reason: &str, message: &str) {
        self.end(reason.to_owned());
        let example = format!("({}) {message}", self.act);
        let mut book = self.ledger.book();
        book.examples.entry(reason.to_owned()).or_insert(example);
        drop(book);
        if UNEXPECTED.contains(&reason) {
            self.ledger.fail(format!(
                "call {} ({}): {reason}: {message}",
                self.id, self.act
            ));
        }
        // A call that asks is sent again with its answer, and may be lost then.
        if UNTOUCHED.contains(&reason) && self.act != "ask" {
            let why = format!("{reason}: {message}");
            self.ledger.book().untouched.push((self.id, why));
        }
    }

    /// We gave it up.
    pub(crate) fn cancelled(mut self, how: &str) {
        self.end(format!("cancelled: {how}"));
    }

    /// It ended as no call may.
    pub(crate) fn wrong(mut self, details: &str) {
        self.end("WRONG".to_owned());
        let details = format!("call {} ({}): {details}", self.id, self.act);
        self.ledger.fail(details);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.open {
            self.end("cancelled: dropped with its connection".to_owned());
        }
    }
}
