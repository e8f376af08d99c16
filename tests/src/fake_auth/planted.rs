//! Secrets that the fakes hand out or are shown. Nothing of them may be seen where it does not belong.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use aho_corasick::AhoCorasick;

/// All that any fake of this process ever planted.
static PLANTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Remembers a secret, and returns it.
pub fn plant(secret: impl Into<String>) -> String {
    let secret = secret.into();
    assert!(secret.len() >= 16, "`{secret}` may turn up by chance");
    PLANTED.lock().unwrap().insert(secret.clone());
    secret
}

/// Remembers a secret that somebody else chose, unless it is too short to be told from other text.
pub fn plant_if_long(secret: &str) {
    if secret.len() >= 16 {
        plant(secret);
    }
}

/// What a daemon says to apps, byte for byte.
#[derive(Clone, Default)]
pub struct Tap(Arc<Mutex<Vec<Recorded>>>);

/// One answer as far as it came.
pub type Recorded = Arc<Mutex<Vec<u8>>>;

impl Tap {
    /// Where the next answer goes.
    pub fn record(&self) -> Recorded {
        let recorded = Recorded::default();
        self.0.lock().unwrap().push(Arc::clone(&recorded));
        recorded
    }

    /// All answers.
    pub fn answers(&self) -> Vec<Vec<u8>> {
        let answers = self.0.lock().unwrap();
        let copies = answers.iter().map(|answer| answer.lock().unwrap().clone());
        copies.collect()
    }
}

/// Looks for planted secrets in texts; says which there are, and what is around the first of each text.
pub fn leaks<'a>(texts: impl IntoIterator<Item = (String, &'a [u8])>) -> Vec<String> {
    let planted: Vec<String> = PLANTED.lock().unwrap().iter().cloned().collect();
    let search = AhoCorasick::new(&planted).expect("a search");
    let found = texts.into_iter().filter_map(|(place, text)| {
        let first = search.find(text)?;
        let around = first.start().saturating_sub(200)..(first.end() + 80).min(text.len());
        Some(format!(
            "{place} holds `{}`, in: {}",
            planted[first.pattern()],
            String::from_utf8_lossy(&text[around])
        ))
    });
    found.collect()
}

/// Looks for planted secrets in every file of a directory.
pub fn leaks_in_files(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(leaks_in_files(&path));
        } else if let Ok(bytes) = std::fs::read(&path) {
            found.extend(leaks([(path.display().to_string(), &bytes[..])]));
        }
    }
    found
}
