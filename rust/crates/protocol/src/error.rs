//! Why a message cannot be decoded or encoded.

use thiserror::Error;

use crate::versions::Versions;

/// A message that cannot be decoded or encoded. The caller's buffers are unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProtocolError {
    #[error("API key {0} is not in the table: it is unknown, or only KRaft uses it")]
    UnknownApi(i16),
    #[error("there is no data schema named {0:?}")]
    UnknownSchema(String),
    #[error("{message} has no version {version}: versions {valid} exist")]
    UnsupportedVersion {
        message: String,
        version: i16,
        valid: Versions,
    },
    #[error("{message} version {version}: cannot decode {path} at byte {position}: {problem}")]
    Decode {
        message: String,
        version: i16,
        path: String,
        position: usize,
        problem: Problem,
    },
    #[error("{message} version {version}: cannot encode {path}: {problem}")]
    Encode {
        message: String,
        version: i16,
        path: String,
        problem: Problem,
    },
    #[error("malformed header at byte {position}: {problem}")]
    Header { position: usize, problem: Problem },
}

/// The problem of one field.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    #[error("{needed} more bytes are needed, {remaining} remain")]
    Truncated { needed: usize, remaining: usize },
    #[error(
        "{count} elements of at least {element_size} bytes do not fit in the {remaining} bytes that remain"
    )]
    CountTooLarge {
        count: usize,
        element_size: usize,
        remaining: usize,
    },
    #[error("a string of {0} bytes is longer than the protocol's limit of 32767")]
    StringTooLong(usize),
    #[error("{0} bytes or elements do not fit in a length field")]
    TooLong(usize),
    #[error("the variable-length integer does not fit in 32 bits")]
    InvalidVarint,
    #[error("null is not allowed at this version")]
    UnexpectedNull,
    #[error("the tagged field has {0} bytes beyond its value")]
    TaggedFieldSize(usize),
    #[error("{0} bytes follow the end of the message")]
    TrailingBytes(usize),
    #[error("the message has more than {0} values")]
    TooManyValues(usize),
    #[error("the message decodes to more than {0} bytes of memory")]
    TooHeavy(usize),
    #[error("the version lacks this field, and its value is not the default {0}")]
    NotInVersion(String),
    #[error("expected {expected}, found {found}")]
    WrongType {
        expected: &'static str,
        found: &'static str,
    },
    #[error("a gap is only possible in an untagged field of a response with gaps")]
    UnexpectedGap,
}

/// A problem, its position, and the fields around it, innermost first.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) problem: Problem,
    pub(crate) position: usize,
    path: Vec<Segment>,
}

#[derive(Debug)]
enum Segment {
    Field(&'static str),
    Element(usize),
}

impl Fault {
    /// Boxed, so that the interpreter's results stay small.
    #[cold]
    pub(crate) fn new(problem: Problem, position: usize) -> Box<Self> {
        Box::new(Self {
            problem,
            position,
            path: Vec::new(),
        })
    }

    #[cold]
    pub(crate) fn in_field(mut self: Box<Self>, name: &'static str) -> Box<Self> {
        self.path.push(Segment::Field(name));
        self
    }

    #[cold]
    pub(crate) fn in_element(mut self: Box<Self>, index: usize) -> Box<Self> {
        self.path.push(Segment::Element(index));
        self
    }

    /// The field as `topics[3].partitions[0].index`; "the message" for a problem of the whole.
    pub(crate) fn path(&self) -> String {
        let mut path = String::new();
        for segment in self.path.iter().rev() {
            match segment {
                Segment::Field(name) if path.is_empty() => path.push_str(name),
                Segment::Field(name) => path.extend([".", name]),
                Segment::Element(index) => path.push_str(&format!("[{index}]")),
            }
        }
        if path.is_empty() {
            "the message".to_owned()
        } else {
            path
        }
    }
}
