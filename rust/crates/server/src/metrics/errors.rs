//! The error codes of a response, as `AbstractResponse.errorCounts` counts them. 0 (`NONE`) counts, too.

use logcore_protocol::{Struct, Value};

/// Error codes and their numbers. One code, as in nearly all responses, needs no allocation.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct ErrorCounts {
    first: Option<(i16, u64)>,
    others: Vec<(i16, u64)>,
}

impl ErrorCounts {
    /// The codes of a message: each `error_code` in `version`, at any depth.
    pub(crate) fn of(message: &Value, version: i16) -> Self {
        let mut counts = Self::default();
        counts.walk(message, version);
        counts
    }

    pub(crate) fn one(code: i16) -> Self {
        let mut counts = Self::default();
        counts.add(code);
        counts
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i16, u64)> {
        self.first.iter().chain(&self.others).copied()
    }

    fn walk(&mut self, value: &Value, version: i16) {
        match value {
            Value::Struct(found) => self.walk_struct(found, version),
            // The elements of an array have one type: numbers and texts have no codes.
            Value::Array(values) if matches!(values.first(), Some(Value::Struct(_))) => {
                values.iter().for_each(|value| self.walk(value, version));
            }
            _ => {}
        }
    }

    fn walk_struct(&mut self, found: &Struct, version: i16) {
        let fields = found.schema().fields.iter().zip(found.fields());
        for (field, value) in fields.filter(|(field, _)| field.versions.contains(version)) {
            match value {
                Value::I16(code) if field.name == "error_code" => self.add(*code),
                value => self.walk(value, version),
            }
        }
    }

    fn add(&mut self, code: i16) {
        let Some(first) = &mut self.first else {
            self.first = Some((code, 1));
            return;
        };
        let mut counts = std::iter::once(first).chain(&mut self.others);
        match counts.find(|(known, _)| *known == code) {
            Some((_, count)) => *count += 1,
            None => self.others.push((code, 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcore_protocol::{Direction, schema};

    // If this failed, refused requests would not count as errors, or count several times, or codes that were
    // not sent would count.
    #[test]
    fn codes_are_found_at_every_depth() {
        let mut message = schema(3, Direction::Response).unwrap().message();
        let mut topic = message.element("topics");
        let partition = topic.element("partitions");
        topic.set("error_code", 0i16);
        for code in [0i16, 5, 5] {
            topic.push("partitions", partition.clone().with("error_code", code));
        }
        message.push("topics", topic.clone());
        topic.set("error_code", 3i16);
        message.push("topics", topic.with("partitions", Vec::<Value>::new()));
        let message = message.into();
        // Metadata itself has a code since version 13.
        for (version, good) in [(12, 2), (13, 3)] {
            let counts = ErrorCounts::of(&message, version);
            let mut counts: Vec<_> = counts.iter().collect();
            counts.sort_unstable();
            assert_eq!(counts, [(0, good), (3, 1), (5, 2)]);
        }
    }
}
