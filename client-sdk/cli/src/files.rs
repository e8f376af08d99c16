//! What is read from files and from standard input, so that secrets need not be on the command line.

use std::io::Read as _;
use std::path::Path;

use mcp_sidecar_client::proto::{EnvVar, Header};

use crate::exit::{Failure, Outcome};

/// The most that is read: more than any message of the daemon may hold.
const MOST: u64 = 64 * 1024 * 1024;

/// The text of a file, or of standard input if the path is `-`.
pub(crate) fn read(path: &Path) -> Outcome<String> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(MOST).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MOST).read_to_string(&mut text))
    };
    match read {
        Ok(_) => Ok(text),
        Err(error) => {
            let message = format!("`{}` cannot be read: {error}", path.display());
            Err(Failure::Usage(message))
        }
    }
}

/// The text itself, or that of a file after `@`, or of standard input for `-`.
pub(crate) fn text_or_file(text: &str) -> Outcome<String> {
    match text.strip_prefix('@') {
        Some(path) => read(Path::new(path)),
        None if text == "-" => read(Path::new("-")),
        None => Ok(text.to_owned()),
    }
}

/// Lines of a file without empty ones and comments. A refusal never quotes one: they hold secrets.
fn entries(path: &Path, separator: char, what: &str) -> Outcome<Vec<(String, String)>> {
    let text = read(path)?;
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with('#')
    });
    lines
        .map(|(number, line)| {
            let pair = line.split_once(separator);
            let pair = pair.map(|(name, value)| (name.trim().to_owned(), value.to_owned()));
            pair.filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
                let place = format!("`{}`, line {}", path.display(), number + 1);
                Failure::Usage(format!("{place}: expected {what}"))
            })
        })
        .collect()
}

/// HTTP headers, one `Name: value` a line.
pub(crate) fn headers(path: &Path) -> Outcome<Vec<Header>> {
    let entries = entries(path, ':', "`Name: value`")?;
    let headers = entries.into_iter().map(|(name, value)| Header {
        name,
        value: value.trim().to_owned(),
    });
    Ok(headers.collect())
}

/// Environment variables, one `NAME=value` a line, in quotes or not; `export` in front is accepted.
pub(crate) fn environment(path: &Path) -> Outcome<Vec<EnvVar>> {
    let entries = entries(path, '=', "`NAME=value`")?;
    let variables = entries.into_iter().map(|(name, value)| EnvVar {
        name: name
            .strip_prefix("export ")
            .unwrap_or(&name)
            .trim()
            .to_owned(),
        value: unquoted(value.trim()).to_owned(),
    });
    Ok(variables.collect())
}

fn unquoted(value: &str) -> &str {
    let within = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or_else(|| within('\'')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_cannot_be_used_is_named_and_not_quoted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        std::fs::write(&path, "# a comment\nAuthorization: Bearer x:y \n\nsecret\n").unwrap();
        let refused = headers(&path).unwrap_err().to_string();
        assert!(
            refused.contains("line 4") && !refused.contains("secret"),
            "{refused}"
        );
        std::fs::write(&path, "export A=\"1 2\"\nB='#3'\nC=\n").unwrap();
        let pairs = environment(&path).unwrap();
        let pairs: Vec<_> = pairs.iter().map(|one| (&*one.name, &*one.value)).collect();
        assert_eq!(pairs, [("A", "1 2"), ("B", "#3"), ("C", "")]);
    }
}
