//! Standard output: documents, lines of events, tables. Everything that comes from a server passes through `plain`.

use std::io::{self, Write as _};

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table as Grid, presets};
use mcp_sidecar_client::Json;
use serde::Serialize;
use serde_json::ser::CompactFormatter;

use crate::exit::{Failure, Outcome};
use crate::plain::{PlainJson, one_line, plain};
use crate::terminal;

/// How results are written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub(crate) enum Format {
    /// For people; may change between versions.
    #[default]
    Table,
    /// The messages of the contract as JSON; see `docs/cli.md`.
    Json,
    /// The same as YAML.
    Yaml,
}

/// A heading.
pub(crate) const HEADING: Style = Style::new().bold();
/// Something good.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Something that needs somebody.
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default();
/// Something bad.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// Something of less interest.
pub(crate) const DIM: Style = Style::new().dimmed();

/// Text of the program itself or made harmless, in a style. Colours are taken away where there is no terminal.
pub(crate) fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Writes text that is harmless already to standard output.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut stdout = anstream::stdout();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes a line that is harmless already to standard output.
pub(crate) fn line(text: &str) -> Outcome {
    Ok(write(&format!("{text}\n"))?)
}

/// Writes a line that is harmless already to standard error. Nobody is told if that fails.
pub(crate) fn note(text: &str) {
    let _nobody = writeln!(anstream::stderr(), "{text}");
}

/// Says why a command failed.
pub(crate) fn complain(text: &str) {
    note(&format!("{} {}", styled(BAD, "error:"), plain(text)));
}

/// One document, as JSON or YAML.
pub(crate) fn document<T: Serialize>(format: Format, value: &T) -> Outcome {
    let text = match format {
        Format::Yaml => serde_saphyr::to_string(value).map_err(|error| odd(&error))?,
        _ => json(PlainJson::pretty(), value)? + "\n",
    };
    Ok(write(&text)?)
}

/// One of many events: a line of JSON, or a document of YAML.
pub(crate) fn event<T: Serialize>(format: Format, value: &T) -> Outcome {
    match format {
        Format::Yaml => {
            let text = serde_saphyr::to_string(value).map_err(|error| odd(&error))?;
            Ok(write(&format!("---\n{text}"))?)
        }
        _ => line(&json(PlainJson(CompactFormatter), value)?),
    }
}

/// JSON on which a terminal does nothing.
pub(crate) fn json<T: Serialize>(
    formatter: PlainJson<impl serde_json::ser::Formatter>,
    value: &T,
) -> Outcome<String> {
    let mut text = Vec::new();
    let mut writer = serde_json::Serializer::with_formatter(&mut text, formatter);
    value.serialize(&mut writer).map_err(|error| odd(&error))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn odd(error: &dyn std::fmt::Display) -> Failure {
    Failure::Refused(format!("the answer cannot be written: {error}"))
}

/// A message of the contract as a document, or whatever people shall see instead.
pub(crate) fn message<M>(format: Format, message: &M, table: impl FnOnce() -> Outcome) -> Outcome
where
    M: prost::Message + prost::Name,
{
    match format {
        Format::Table => table(),
        format => document(format, &Json(message)),
    }
}

/// A table with a heading, as wide as the terminal.
pub(crate) struct Table {
    grid: Grid,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Self {
        let mut grid = Self::bare();
        grid.set_header(heading.iter().map(|title| styled(HEADING, title)));
        Self { grid }
    }

    /// Names and values.
    pub(crate) fn of_facts() -> Self {
        Self { grid: Self::bare() }
    }

    fn bare() -> Grid {
        let mut grid = Grid::new();
        grid.load_style(presets::NOTHING);
        if let Some(width) = terminal::width() {
            grid.set_content_arrangement(ContentArrangement::Dynamic);
            grid.set_width(width);
        }
        grid
    }

    /// A row of cells from anywhere; each is put on one line and made harmless.
    pub(crate) fn row<const N: usize>(&mut self, cells: [&str; N]) {
        self.styled_row(cells.map(|cell| (Style::new(), cell)));
    }

    /// The same with styles.
    pub(crate) fn styled_row<const N: usize>(&mut self, cells: [(Style, &str); N]) {
        let cells = cells.map(|(style, cell)| match cell {
            "" => String::new(),
            cell if style == Style::new() => one_line(cell).into_owned(),
            cell => styled(style, &one_line(cell)),
        });
        self.grid.add_row(cells);
    }

    /// A name and a value that may have several lines; left out if it is empty.
    pub(crate) fn fact(&mut self, name: &str, value: &str) {
        self.styled_fact(name, Style::new(), value);
    }

    /// The same in a style.
    pub(crate) fn styled_fact(&mut self, name: &str, style: Style, value: &str) {
        if value.is_empty() {
            return;
        }
        let value = plain(value);
        let value = if style == Style::new() {
            value.into_owned()
        } else {
            styled(style, &value)
        };
        self.grid.add_row([styled(HEADING, name), value]);
    }

    /// Writes it.
    pub(crate) fn print(self) -> Outcome {
        for row in self.grid.lines() {
            // The first column needs no space in front of it.
            let row = row.strip_prefix(' ').unwrap_or(&row);
            line(row.trim_end())?;
        }
        Ok(())
    }
}
