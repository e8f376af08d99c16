//! JSON numbers of any size, compared exactly.
//!
//! Never rounds, and never expands an exponent: `1e999999999` costs as much as `1`.

use std::cmp::Ordering;

/// A JSON number with the text that it had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decimal {
    text: String,
    negative: bool,
    /// The digits without zeros at either end: the value is 0.d1d2d3... times ten to the power of `point`. Empty: zero.
    digits: Vec<u8>,
    point: i64,
}

impl Decimal {
    /// Reads a JSON number; none for anything else. Exponents beyond 64 bits are cut to the largest.
    #[must_use]
    pub fn parse(json: &str) -> Option<Self> {
        let unsigned = json.strip_prefix('-').unwrap_or(json);
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, read_exponent(exponent)?),
            None => (unsigned, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (mantissa, ""),
        };
        let zero_padded = whole.len() > 1 && whole.starts_with('0');
        if whole.is_empty() || zero_padded || !is_digits(whole) || !is_digits(fraction) {
            return None;
        }
        let mut digits = [whole.as_bytes(), fraction.as_bytes()].concat();
        let significant = digits.iter().rposition(|digit| *digit != b'0');
        digits.truncate(significant.map_or(0, |last| last + 1));
        let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
        digits.drain(..zeros);
        let size = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
        let point = size(whole.len())
            .saturating_sub(size(zeros))
            .saturating_add(exponent);
        Some(Self {
            text: json.to_owned(),
            negative: json.len() > unsigned.len() && !digits.is_empty(),
            point: if digits.is_empty() { 0 } else { point },
            digits,
        })
    }

    /// The number as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it has no fraction: `1.0` and `1e2` have none.
    #[must_use]
    pub fn is_integer(&self) -> bool {
        i64::try_from(self.digits.len()).is_ok_and(|length| length <= self.point)
            || self.digits.is_empty()
    }

    /// Whether a 64-bit integer or a double holds it, so that it is what was meant when it is read as one. A double holds
    /// what it is written as in the fewest digits.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let text = &self.text;
        if text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() {
            return true;
        }
        let double = text.parse().ok().filter(|double: &f64| double.is_finite());
        let shortest = double.and_then(|double| Self::parse(&format!("{double:e}")));
        shortest.is_some_and(|shortest| self.compare(&shortest).is_eq())
    }

    /// Compares the values; `1` and `1.0` are equal here, and are not for `==`.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Ordering {
        let sign = |number: &Self| match (number.digits.is_empty(), number.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        // Without zeros at the ends the digits compare like text.
        let size = || (self.point, &self.digits).cmp(&(other.point, &other.digits));
        sign(self).cmp(&sign(other)).then_with(|| {
            if self.negative {
                size().reverse()
            } else {
                size()
            }
        })
    }

    /// As a count: none if it is negative or has a fraction, the largest count if it is larger.
    #[must_use]
    pub fn count(&self) -> Option<u32> {
        if self.negative || !self.is_integer() {
            return None;
        }
        // Ten digits are enough for 32 bits.
        let places = usize::try_from(self.point)
            .ok()
            .filter(|places| *places <= 10);
        let Some(places) = places else {
            return Some(u32::MAX);
        };
        let digits = self
            .digits
            .iter()
            .chain(std::iter::repeat(&b'0'))
            .take(places);
        let value = digits.fold(0_u64, |value, digit| value * 10 + u64::from(digit - b'0'));
        Some(u32::try_from(value).unwrap_or(u32::MAX))
    }
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// An exponent that leaves room for the lengths that are added to it.
fn read_exponent(text: &str) -> Option<i64> {
    const LARGEST: i64 = i64::MAX / 2;
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !is_digits(digits) {
        return None;
    }
    let size = digits.parse::<i64>().unwrap_or(LARGEST).min(LARGEST);
    Some(if negative { -size } else { size })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::{Decimal, Ordering};

    fn decimal(text: &str) -> Decimal {
        Decimal::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn numbers_are_json_numbers() {
        for text in [
            "0", "-0", "0.0", "1", "-1.50", "1e5", "1E+05", "1.5e-3", "10e400",
        ] {
            assert_eq!(decimal(text).as_str(), text);
        }
        for text in [
            "", "-", "+1", "01", "1.", ".5", "1e", "1e+", "1e1.5", "0x1", "NaN", "\"1\"", "1 ",
            "--1", "1_0", "１",
        ] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    #[test]
    fn integers_are_values_without_a_fraction() {
        for text in [
            "0",
            "-0.0",
            "0e-5",
            "1.0",
            "-20",
            "1e2",
            "1.5e1",
            "120e-1",
            "1e999999999999999999999",
        ] {
            assert!(decimal(text).is_integer(), "{text}");
        }
        for text in ["0.5", "1.05", "1e-1", "15e-1", "1e-999999999999999999999"] {
            assert!(!decimal(text).is_integer(), "{text}");
        }
    }

    #[test]
    fn comparison_is_exact() {
        use Ordering::{Equal, Greater, Less};
        for (left, expected, right) in [
            ("1", Equal, "1.0"),
            ("-0", Equal, "0.00"),
            ("100", Equal, "1e2"),
            ("0.001", Equal, "1e-3"),
            ("9007199254740993", Greater, "9007199254740992"),
            ("18446744073709551616", Greater, "18446744073709551615"),
            ("0.1", Less, "0.10000000000000000001"),
            ("-2", Less, "-1"),
            ("-1", Less, "0"),
            ("-10", Less, "-9.99"),
            ("1e999999999999999999999", Greater, "9"),
            ("9", Less, "10"),
            ("0.09", Less, "0.1"),
        ] {
            assert_eq!(
                decimal(left).compare(&decimal(right)),
                expected,
                "{left} {right}"
            );
            assert_eq!(decimal(right).compare(&decimal(left)), expected.reverse());
        }
    }

    #[test]
    fn what_a_double_holds_is_told_from_what_it_rounds() {
        for text in [
            "0",
            "-0",
            "1.0",
            "1.50",
            "0.1",
            "0.30000000000000004",
            "9007199254740993",
            "18446744073709551615",
            "-9223372036854775808",
            "1e22",
            "1e300",
            "100000000000000000000",
            "1.7976931348623157e308",
            "5e-324",
        ] {
            assert!(decimal(text).is_held(), "{text}");
        }
        for text in [
            "18446744073709551616",
            "-9223372036854775809",
            "1e400",
            "-1e400",
            "1e-400",
            "9007199254740993.0",
            "0.1000000000000000055511151231257827",
            "123456789012345678901234567890",
        ] {
            assert!(!decimal(text).is_held(), "{text}");
        }
    }

    #[test]
    fn counts_are_cut_to_32_bits() {
        for (text, count) in [
            ("0", Some(0)),
            ("3.0", Some(3)),
            ("1e3", Some(1000)),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", Some(u32::MAX)),
            ("1e400", Some(u32::MAX)),
            ("-1", None),
            ("1.5", None),
        ] {
            assert_eq!(decimal(text).count(), count, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[-+0-9.eE]{0,30}|.*") {
            let read = Decimal::parse(&text);
            assert_eq!(read.is_some(), serde_json::from_str::<&serde_json::value::RawValue>(&text)
                .is_ok_and(|json| json.get() == text && text.starts_with(|c: char| c == '-' || c.is_ascii_digit())));
            if let Some(number) = read {
                assert!(number.compare(&number).is_eq());
                let _ = number.count();
            }
        }

        #[test]
        fn integers_compare_like_integers(left in any::<i128>(), right in any::<i128>()) {
            let (a, b) = (decimal(&left.to_string()), decimal(&right.to_string()));
            assert_eq!(a.compare(&b), left.cmp(&right));
            assert!(a.is_integer());
        }
    }
}
