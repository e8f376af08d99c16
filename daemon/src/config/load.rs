//! Where configuration comes from: defaults, then a TOML file, then the environment, then flags; later ones win.
//!
//! Collects every problem before it answers, so that an operator fixes a file once. Never prints and never exits.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use figment::error::{Actual, Kind};
use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::Config;
use super::validate::problems;

/// Prefix of the environment variables that set keys.
const PREFIX: &str = "MCP_SIDECARD_";
/// The environment variable that names the configuration file.
const FILE_VARIABLE: &str = "MCP_SIDECARD_CONFIG";
/// Name of the daemon's directories.
const DIRECTORY: &str = "mcp-sidecar";

/// Everything that is wrong with the configuration, one line each. Never empty.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<String>,
}

impl ConfigError {
    /// The problems, in the order of the sources.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is not acceptable:")?;
        for problem in &self.problems {
            write!(f, "\n  - {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// What the surroundings of the process say; taken once, so that tests need no global state.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// The environment variables.
    pub variables: BTreeMap<OsString, OsString>,
    /// Whether the process runs as root.
    pub root: bool,
    /// The configuration file of the system, used if it exists and nothing else is named.
    pub system_file: PathBuf,
}

impl Environment {
    /// The surroundings of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
            root: rustix::process::geteuid().is_root(),
            system_file: PathBuf::from("/etc/mcp-sidecar/config.toml"),
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        let value = self.variables.get(std::ffi::OsStr::new(name))?;
        (!value.is_empty()).then(|| PathBuf::from(value))
    }

    /// The first of the directories that the service manager made, if any.
    fn service_directory(&self, name: &str) -> Option<PathBuf> {
        let list = self.path(name)?;
        let first = list.to_str()?.split(':').next()?.to_owned();
        (!first.is_empty()).then(|| PathBuf::from(first))
    }

    fn data_dir(&self) -> PathBuf {
        self.service_directory("STATE_DIRECTORY")
            .or_else(|| self.root.then(|| Path::new("/var/lib").join(DIRECTORY)))
            .or_else(|| Some(self.path("XDG_STATE_HOME")?.join(DIRECTORY)))
            .or_else(|| Some(self.path("HOME")?.join(".local/state").join(DIRECTORY)))
            .unwrap_or_default()
    }

    /// The default socket; empty if only the data directory is left for it.
    fn socket(&self) -> PathBuf {
        self.service_directory("RUNTIME_DIRECTORY")
            .or_else(|| self.root.then(|| Path::new("/run").join(DIRECTORY)))
            .or_else(|| Some(self.path("XDG_RUNTIME_DIR")?.join(DIRECTORY)))
            .map(|directory| directory.join("app.sock"))
            .unwrap_or_default()
    }

    /// The file that is read without `--config`, if any.
    fn file(&self) -> Option<PathBuf> {
        if let Some(named) = self.path(FILE_VARIABLE) {
            return Some(named);
        }
        // The home of root is not where an operator looks for the configuration of a service.
        let home = self.path("HOME").filter(|_| !self.root);
        let user = self.path("XDG_CONFIG_HOME");
        let user = user.or_else(|| Some(home?.join(".config")));
        let user = user.map(|directory| directory.join(DIRECTORY).join("config.toml"));
        let user = user.filter(|path| path.exists());
        user.or_else(|| Some(self.system_file.clone()).filter(|path| path.exists()))
    }
}

/// What the configuration is made of.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// `--config`: this file, which must exist.
    pub file: Option<PathBuf>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    /// `--socket`.
    pub socket: Option<PathBuf>,
    /// `--set key=value`, in order.
    pub set: Vec<String>,
    /// The surroundings.
    pub environment: Environment,
}

impl Sources {
    /// The file that is read, if any.
    #[must_use]
    pub fn config_file(&self) -> Option<PathBuf> {
        self.file.clone().or_else(|| self.environment.file())
    }

    /// The directory of the credentials that the service manager passes, if any.
    #[must_use]
    pub fn credentials(&self) -> Option<PathBuf> {
        self.environment.path("CREDENTIALS_DIRECTORY")
    }
}

impl Config {
    /// Builds the configuration: defaults, then the file, then the environment, then flags.
    ///
    /// # Errors
    /// Every unknown key, wrong type and value out of bounds, each with its source, its full key and a remedy.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        Loader::new(&sources.environment).load(sources)
    }
}

/// One value that a variable or a flag sets.
struct Setting {
    metadata: Metadata,
    data: Dict,
}

impl Provider for Setting {
    fn metadata(&self) -> Metadata {
        self.metadata.clone()
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.data.clone())]))
    }
}

/// Where the admin socket is if nothing else is said.
fn beside(socket: &Path) -> PathBuf {
    match socket.file_name() {
        Some(name) if name != "app.sock" => {
            let mut admin = OsString::from("admin-");
            admin.push(name);
            socket.with_file_name(admin)
        }
        _ => socket.with_file_name("admin.sock"),
    }
}

struct Loader {
    defaults: Config,
    /// The defaults as values: the keys that exist, and the type of each.
    known: Dict,
    problems: Vec<String>,
}

impl Loader {
    fn new(environment: &Environment) -> Self {
        let mut defaults = Config {
            data_dir: environment.data_dir(),
            ..Config::default()
        };
        defaults.socket.path = environment.socket();
        let known = Value::serialize(&defaults)
            .ok()
            .and_then(Value::into_dict)
            .unwrap_or_default();
        Self {
            defaults,
            known,
            problems: Vec::new(),
        }
    }

    fn load(mut self, sources: &Sources) -> Result<Config, ConfigError> {
        let mut figment = Figment::from(Serialized::defaults(&self.defaults));
        if let Some(path) = sources.config_file() {
            figment = self.merge_file(figment, &path);
        }
        figment = self.merge_environment(figment, &sources.environment);
        for text in &sources.set {
            let origin = format!("flag `--set {text}`");
            if let Some((key, value)) = text.split_once('=') {
                figment = self.merge_text(figment, key.trim(), value, &origin);
            } else {
                self.problems
                    .push(format!("{origin}: write it as `key=value`"));
            }
        }
        let flags = [
            ("--data-dir", "data_dir", &sources.data_dir),
            ("--socket", "socket.path", &sources.socket),
        ];
        for (flag, key, path) in flags {
            let Some(path) = path else { continue };
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            match path.to_str() {
                Some(text) => {
                    figment = self.merge_text(figment, key, text, &format!("flag `{flag}`"));
                }
                None => self
                    .problems
                    .push(format!("flag `{flag}`: the path is not UTF-8")),
            }
        }
        self.finish(figment)
    }

    /// Extracts and validates; every wrong value is noted and replaced by its default, to find the next one.
    fn finish(mut self, mut figment: Figment) -> Result<Config, ConfigError> {
        let mut config = loop {
            match figment.extract::<Config>() {
                Ok(config) => break config,
                Err(errors) => {
                    for error in errors {
                        let path = error.path.clone();
                        self.problems.push(describe(&error));
                        match self.default_of(&path) {
                            Some(reset) => figment = figment.merge(reset),
                            None => return Err(self.into_error()),
                        }
                    }
                }
            }
        };
        if config.socket.path.as_os_str().is_empty() {
            config.socket.path = config.data_dir.join("app.sock");
        }
        if config.admin.path.as_os_str().is_empty() {
            config.admin.path = beside(&config.socket.path);
        }
        let limits = &mut config.limits;
        if limits.connections_per_user == 0 {
            limits.connections_per_user = limits.connections - limits.connections / 4;
        }
        let questions = &mut config.questions;
        for own in [
            &mut questions.sampling_expiry,
            &mut questions.approval_expiry,
        ] {
            if own.is_zero() {
                *own = questions.expiry;
            }
        }
        if questions.max_sampling_bytes == 0 {
            let wanted = questions.max_bytes.max(1024 * 1024);
            questions.max_sampling_bytes = wanted.min(questions.max_pending_bytes);
        }
        for problem in problems(&config) {
            let origin = origin_of(&figment, &problem.key);
            self.problems
                .push(format!("{origin}: `{}` {}", problem.key, problem.text));
        }
        if self.problems.is_empty() {
            Ok(config)
        } else {
            Err(self.into_error())
        }
    }

    fn into_error(self) -> ConfigError {
        ConfigError {
            problems: self.problems,
        }
    }

    /// The default of the key at the head of this path that is not a section.
    fn default_of(&self, path: &[String]) -> Option<Setting> {
        let mut keys = Vec::new();
        let mut value: Option<&Value> = None;
        let mut section = &self.known;
        for key in path {
            value = Some(section.get(key)?);
            keys.push(key.as_str());
            match value {
                Some(Value::Dict(_, inner)) => section = inner,
                _ => break,
            }
        }
        Some(Setting {
            metadata: Metadata::named("the defaults"),
            data: nest(&keys, value?.clone()),
        })
    }

    fn merge_file(&mut self, figment: Figment, path: &Path) -> Figment {
        let origin = format!("file `{}`", path.display());
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(cause) => {
                self.problems
                    .push(format!("{origin} cannot be read: {cause}"));
                return figment;
            }
        };
        let data = match Toml::string(&text).data() {
            Ok(mut data) => data.remove(&Profile::Default).unwrap_or_default(),
            Err(cause) => {
                let cause = cause.to_string();
                self.problems
                    .push(format!("{origin} is not TOML: {}", cause.trim_end()));
                return figment;
            }
        };
        let data = self.known_part(data, &origin);
        figment.merge(Setting {
            metadata: Metadata::named(origin),
            data,
        })
    }

    fn merge_environment(&mut self, mut figment: Figment, environment: &Environment) -> Figment {
        for (name, value) in &environment.variables {
            let Some(name) = name.to_str() else { continue };
            let Some(key) = name.strip_prefix(PREFIX) else {
                continue;
            };
            if name == FILE_VARIABLE {
                continue;
            }
            let origin = format!("environment variable `{name}`");
            let key = key.to_ascii_lowercase().replace("__", ".");
            match value.to_str() {
                Some(text) => figment = self.merge_text(figment, &key, text, &origin),
                None => self
                    .problems
                    .push(format!("{origin}: the value is not UTF-8")),
            }
        }
        figment
    }

    /// Sets one key from text, which is read according to the type of the key's default.
    fn merge_text(&mut self, figment: Figment, key: &str, text: &str, origin: &str) -> Figment {
        let keys: Vec<&str> = key.split('.').collect();
        let mut section = &self.known;
        for (depth, name) in keys.iter().enumerate() {
            let last = depth + 1 == keys.len();
            match section.get(*name) {
                Some(Value::Dict(_, inner)) if !last => section = inner,
                Some(Value::Dict(..)) => {
                    self.problems.push(format!(
                        "{origin}: `{key}` is a section; set one of its keys, such as `{key}.{}`",
                        section_example(section, name)
                    ));
                    return figment;
                }
                Some(kind) if last => {
                    return figment.merge(Setting {
                        metadata: Metadata::named(origin.to_owned()),
                        data: nest(&keys, typed(kind, text)),
                    });
                }
                _ => break,
            }
        }
        let problem = self.unknown(key, origin);
        self.problems.push(problem);
        figment
    }

    /// The part of a file whose keys exist; each of the others is a problem.
    fn known_part(&mut self, data: Dict, origin: &str) -> Dict {
        let mut unknown = Vec::new();
        let known = keep_known(data, &self.known, "", &mut unknown);
        for key in unknown {
            let problem = self.unknown(&key, origin);
            self.problems.push(problem);
        }
        known
    }

    fn unknown(&self, key: &str, origin: &str) -> String {
        let mut all = Vec::new();
        leaves(&self.known, "", &mut all);
        match nearest(key, all.iter().map(String::as_str)) {
            Some(near) => format!("{origin}: unknown key `{key}`; did you mean `{near}`?"),
            None => format!("{origin}: unknown key `{key}`; `--print-config` shows all keys"),
        }
    }
}

fn section_example(parent: &Dict, name: &str) -> String {
    let section = parent.get(name).and_then(Value::as_dict);
    section
        .and_then(|section| section.keys().next().cloned())
        .unwrap_or_default()
}

fn keep_known(data: Dict, known: &Dict, prefix: &str, unknown: &mut Vec<String>) -> Dict {
    let mut kept = Dict::new();
    for (key, value) in data {
        let full = join(prefix, &key);
        match (known.get(&key), value) {
            (None, _) => unknown.push(full),
            (Some(Value::Dict(_, inner)), Value::Dict(tag, data)) => {
                let part = keep_known(data, inner, &full, unknown);
                kept.insert(key, Value::Dict(tag, part));
            }
            (Some(_), value) => {
                kept.insert(key, value);
            }
        }
    }
    kept
}

fn join(prefix: &str, key: &str) -> String {
    if prefix.is_empty() {
        key.to_owned()
    } else {
        format!("{prefix}.{key}")
    }
}

fn leaves(section: &Dict, prefix: &str, all: &mut Vec<String>) {
    for (key, value) in section {
        let full = join(prefix, key);
        if let Value::Dict(_, inner) = value {
            leaves(inner, &full, all);
        }
        all.push(full);
    }
}

/// The known key that was probably meant: alike as a whole, or the same last word in another section.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let score = |candidate: &str| {
        let whole = strsim::jaro_winkler(key, candidate);
        let word = 0.95 * strsim::jaro_winkler(&last(key), &last(candidate));
        whole.max(word)
    };
    known
        .map(|candidate| (score(candidate), candidate))
        .filter(|(score, _)| *score >= 0.8)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}

fn nest(keys: &[&str], value: Value) -> Dict {
    match keys {
        [] => Dict::new(),
        [last] => Dict::from([((*last).to_owned(), value)]),
        [first, rest @ ..] => Dict::from([((*first).to_owned(), Value::from(nest(rest, value)))]),
    }
}

/// Reads text as the type of `kind`. Text of another type stays text, so that the type error shows it.
fn typed(kind: &Value, text: &str) -> Value {
    let plain = || Value::from(text.to_owned());
    match kind {
        Value::Bool(..) => text.parse::<bool>().map_or_else(|_| plain(), Value::from),
        Value::Num(..) => {
            let digits = text.replace('_', "");
            digits.parse::<i64>().map_or_else(|_| plain(), Value::from)
        }
        Value::Array(..) if text.trim_start().starts_with('[') => {
            text.parse::<Value>().unwrap_or_else(|_| plain())
        }
        Value::Array(..) => {
            let items = text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty());
            items.map(str::to_owned).collect::<Vec<_>>().into()
        }
        _ => plain(),
    }
}

/// Where the value of a key comes from, for people.
fn origin_of(figment: &Figment, key: &str) -> String {
    let mut key = key;
    loop {
        if let Some(metadata) = figment.find_metadata(key) {
            if metadata.name.contains('`') {
                return metadata.name.to_string();
            }
            return "the defaults".to_owned();
        }
        match key.rsplit_once('.') {
            Some((head, _)) => key = head,
            None => return "the defaults".to_owned(),
        }
    }
}

/// One type or value error, with its source and full key.
fn describe(error: &figment::Error) -> String {
    let origin = error
        .metadata
        .as_ref()
        .map_or("the configuration", |metadata| metadata.name.as_ref());
    let key = error.path.join(".");
    match &error.kind {
        Kind::UnknownField(field, known) => {
            let full = match error.path.last() {
                Some(last) if last == field => key,
                _ => join(&key, field),
            };
            let hint = nearest(field, known.iter().copied()).map_or_else(
                || format!("known are {}", known.join(", ")),
                |near| format!("did you mean `{near}`?"),
            );
            format!("{origin}: unknown key `{full}`; {hint}")
        }
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
            let wanted = match expected.as_str() {
                "a boolean" => "true or false",
                "usize" | "u64" | "u32" => "a whole number",
                "a sequence" => "a list",
                "a string" | "path string" => "text in quotes",
                other => other,
            };
            format!("{origin}: `{key}` is {}; write {wanted}", shown(actual))
        }
        Kind::UnknownVariant(actual, known) => format!(
            "{origin}: `{key}` is `{actual}`; write one of {}",
            known
                .iter()
                .map(|word| format!("\"{word}\""))
                .collect::<Vec<_>>()
                .join(", ")
        ),
        Kind::MissingField(field) => {
            format!("{origin}: `{}` is missing", join(&key, field))
        }
        other => format!("{origin}: `{key}`: {other}"),
    }
}

fn shown(actual: &Actual) -> String {
    match actual {
        Actual::Bool(value) => format!("`{value}`"),
        Actual::Unsigned(value) => format!("`{value}`"),
        Actual::Signed(value) => format!("`{value}`"),
        Actual::Float(value) => format!("`{value}`"),
        Actual::Str(value) => format!("`{value}`"),
        Actual::Seq => "a list".to_owned(),
        Actual::Map => "a table".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
