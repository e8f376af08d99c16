//! Durations as people write them, for serde: `500ms`, `30s`, `1h30m`.
//!
//! Never accepts a bare number: its unit would be a guess.

use std::time::Duration;

use serde::{Deserializer, Serializer, de};

/// Writes the duration in the form that [`deserialize`] reads.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format(*duration))
}

/// Reads a duration with a unit.
///
/// # Errors
/// If the value is not text, or not a duration with a unit.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    struct Visitor;

    impl de::Visitor<'_> for Visitor {
        type Value = Duration;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a duration with a unit, such as \"30s\", \"500ms\" or \"1h\"")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
            humantime::parse_duration(text)
                .map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
        }
    }

    deserializer.deserialize_any(Visitor)
}

/// The duration for people, without spaces: `1h30m`.
#[must_use]
pub fn format(duration: Duration) -> String {
    humantime::format_duration(duration)
        .to_string()
        .replace(' ', "")
}

/// The same for what may be left out.
pub mod optional {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes it; one that is not there has to be skipped.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => super::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// As without `optional`.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        #[derive(Deserialize)]
        struct Given(#[serde(with = "super")] Duration);

        let given = Option::<Given>::deserialize(deserializer)?;
        Ok(given.map(|Given(duration)| duration))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Wrapper {
        #[serde(with = "super")]
        value: Duration,
    }

    #[test]
    fn durations_survive_a_round_trip() {
        for millis in [0, 1, 500, 1_000, 5_400_000, 86_400_000, 90_061_001] {
            let before = Wrapper {
                value: Duration::from_millis(millis),
            };
            let text = toml::to_string(&before).unwrap();
            assert_eq!(toml::from_str::<Wrapper>(&text).unwrap(), before, "{text}");
        }
    }

    #[test]
    fn a_bare_number_is_refused() {
        let error = toml::from_str::<Wrapper>("value = 30").unwrap_err();
        assert!(error.to_string().contains("with a unit"), "{error}");
        assert!(toml::from_str::<Wrapper>("value = \"30\"").is_err());
    }
}
