//! What the daemon may cost, and whether it keeps to it.

use serde_json::{Value, json};

/// One line of the budgets.
pub(crate) struct Row {
    /// What is bounded.
    pub(crate) what: String,
    /// The bound, in words.
    pub(crate) budget: String,
    /// What was measured, in words.
    pub(crate) measured: String,
    /// Whether it is within; `None` if it could not be measured here, and `measured` says why.
    pub(crate) within: Option<bool>,
}

impl Row {
    /// A figure that may be at most so much.
    pub(crate) fn at_most(what: &str, unit: &str, budget: f64, measured: f64) -> Self {
        Self {
            what: what.to_owned(),
            budget: format!("at most {}{unit}", short(budget)),
            measured: format!("{}{unit}", short(measured)),
            within: Some(measured <= budget),
        }
    }

    /// A figure that must be at least so much.
    pub(crate) fn at_least(what: &str, unit: &str, budget: f64, measured: f64) -> Self {
        Self {
            what: what.to_owned(),
            budget: format!("at least {}{unit}", short(budget)),
            measured: format!("{}{unit}", short(measured)),
            within: Some(measured >= budget),
        }
    }

    /// Something that cannot be measured here.
    pub(crate) fn unknown(what: &str, why: &str) -> Self {
        Self {
            what: what.to_owned(),
            budget: String::new(),
            measured: why.to_owned(),
            within: None,
        }
    }

    /// Whether the budget is kept; what could not be measured is not.
    pub(crate) fn is_within(&self) -> bool {
        self.within == Some(true)
    }

    /// Prints it for people.
    pub(crate) fn print(&self) {
        println!(
            "{:<12}  {:<92}  {:>18}  {:>12}",
            self.verdict(),
            self.what,
            self.budget,
            self.measured
        );
    }

    fn verdict(&self) -> &'static str {
        match self.within {
            Some(true) => "within",
            Some(false) => "misses",
            None => "not measured",
        }
    }
}

/// A figure with as many digits as mean something.
fn short(figure: f64) -> String {
    if figure.abs() >= 1000.0 {
        format!("{figure:.0}")
    } else if figure.abs() >= 100.0 {
        format!("{figure:.1}")
    } else {
        format!("{figure:.2}")
    }
}

/// What was measured, for programs.
pub(crate) fn as_json(rows: &[Row]) -> Value {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "what": row.what, "budget": row.budget, "measured": row.measured,
                "verdict": row.verdict(),
            })
        })
        .collect();
    json!({ "budgets": rows })
}
