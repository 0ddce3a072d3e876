//! The command line: `--flag value` or `--flag=value`. Unknown flags and bad values are refused.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use crate::error::BenchError;

/// The flags of the command line that were not taken yet.
pub(crate) struct Args {
    flags: BTreeMap<String, String>,
}

fn usage<T>(text: String) -> Result<T, BenchError> {
    Err(BenchError::Usage(text))
}

impl Args {
    pub(crate) fn parse(words: Vec<String>) -> Result<Self, BenchError> {
        let mut flags = BTreeMap::new();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--") else {
                return usage(format!("\"{word}\" is not a flag"));
            };
            let (flag, value) = match flag.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (flag.to_owned(), words.next()),
            };
            let Some(value) = value else {
                return usage(format!("--{flag} needs a value"));
            };
            if flags.insert(flag.clone(), value).is_some() {
                return usage(format!("--{flag} is given twice"));
            }
        }
        Ok(Self { flags })
    }

    /// The value of `--flag`, which must be given.
    pub(crate) fn required<T: FromStr>(&mut self, flag: &str) -> Result<T, BenchError>
    where
        T::Err: Display,
    {
        match self.flags.remove(flag) {
            Some(value) => read(flag, &value),
            None => usage(format!("--{flag} is missing")),
        }
    }

    /// The value of `--flag`, or `default`.
    pub(crate) fn optional<T: FromStr>(&mut self, flag: &str, default: T) -> Result<T, BenchError>
    where
        T::Err: Display,
    {
        match self.flags.remove(flag) {
            Some(value) => read(flag, &value),
            None => Ok(default),
        }
    }

    /// Refuses the flags that are left.
    pub(crate) fn finish(&self) -> Result<(), BenchError> {
        match self.flags.keys().next() {
            Some(flag) => usage(format!("--{flag} is not a flag of this command")),
            None => Ok(()),
        }
    }
}

fn read<T: FromStr>(flag: &str, value: &str) -> Result<T, BenchError>
where
    T::Err: Display,
{
    value
        .parse()
        .map_err(|error| BenchError::Usage(format!("--{flag} {value}: {error}")))
}

/// A number that is at least one.
pub(crate) type Count = std::num::NonZeroU32;

/// A number of bytes, at least one: `1048576`, `1024KiB` or `1MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
        let (digits, shift) = units
            .iter()
            .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
            .unwrap_or((text, 0));
        digits
            .parse::<usize>()
            .ok()
            .and_then(|number| number.checked_mul(1 << shift))
            .filter(|&bytes| bytes > 0)
            .map(Size)
            .ok_or_else(|| "not a size; write for example 1048576 or 1MiB".to_owned())
    }
}
