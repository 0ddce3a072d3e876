//! What a message looks like: schemas, structs, fields and the versions they exist in.
//!
//! Schemas are built once from the table (`table.rs`), live as long as the process and never change.

use std::fmt;

use crate::error::ProtocolError;
use crate::value::{Struct, Value};

/// An inclusive range of versions; empty when `first > last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub first: i16,
    pub last: i16,
}

impl Versions {
    pub const NONE: Self = Self { first: 0, last: -1 };

    /// Whether the range contains this version.
    #[inline]
    pub const fn contains(self, version: i16) -> bool {
        version >= self.first && version <= self.last
    }

    /// Whether no version is in the range.
    pub const fn is_empty(self) -> bool {
        self.first > self.last
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_empty(), self.last) {
            (true, _) => out.write_str("none"),
            (false, i16::MAX) => write!(out, "{}+", self.first),
            (false, last) if last == self.first => write!(out, "{last}"),
            (false, last) => write!(out, "{}-{last}", self.first),
        }
    }
}

/// Whether a schema is of a request or of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Request,
    Response,
}

/// The type of a field, with the names Kafka's message definitions use.
#[derive(Clone, Copy, Debug)]
pub enum FieldType {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint16,
    Uint32,
    Float64,
    Uuid,
    String,
    Bytes,
    /// Record batches; on the wire the same as `Bytes`.
    Records,
    Array(&'static FieldType),
    Struct(&'static StructSchema),
}

impl FieldType {
    /// The name as an error message says it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Float64 => "float64",
            Self::Uuid => "uuid",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Records => "records",
            Self::Array(_) => "array",
            Self::Struct(_) => "struct",
        }
    }

    /// The fewest bytes a non-null value of this type takes on the wire; what a count of elements is checked against.
    pub(crate) fn min_size(&self, version: i16, flexible: bool) -> usize {
        match self {
            Self::Bool | Self::Int8 => 1,
            Self::Int16 | Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 => 4,
            Self::Int64 | Self::Float64 => 8,
            Self::Uuid => 16,
            Self::String => {
                if flexible {
                    1
                } else {
                    2
                }
            }
            Self::Bytes | Self::Records | Self::Array(_) => {
                if flexible {
                    1
                } else {
                    4
                }
            }
            Self::Struct(schema) => schema.min_size(version, flexible),
        }
    }
}

/// One field of a struct.
#[derive(Debug)]
pub struct Field {
    /// The name in snake case, as Kafka's own schemas spell it.
    pub name: &'static str,
    /// The position of `name` in [`crate::field_names`]: fields of equal names share it.
    pub name_id: usize,
    pub kind: FieldType,
    /// Versions that have the field.
    pub versions: Versions,
    /// Versions in which it may be null.
    pub nullable: Versions,
    /// Versions in which it travels as a tagged field.
    pub tagged: Versions,
    pub tag: u32,
    /// The value of a field that a version lacks or a sender left out.
    pub default: Value,
    /// Whether a version that lacks the field silently drops a value that is not the default.
    pub ignorable: bool,
}

impl Field {
    /// Whether the field is written among the plain, untagged ones at this version.
    #[inline]
    pub(crate) fn is_plain(&self, version: i16) -> bool {
        self.versions.contains(version) && !self.tagged.contains(version)
    }
}

/// The fields of a message or of a struct inside it, in wire order.
#[derive(Debug)]
pub struct StructSchema {
    /// The name of the field that holds the struct, or of the message.
    pub name: &'static str,
    pub fields: Vec<Field>,
    /// Indexes of the fields that have a tag, by rising tag.
    pub(crate) tagged: Vec<usize>,
    /// What one has of memory, without what its strings, arrays and structs have beyond their defaults (`weight.rs`).
    pub(crate) weight: usize,
}

impl StructSchema {
    /// The position of the field with this name, for use with [`Struct`]'s indexing. Resolve once, outside of loops.
    pub fn field_index(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }

    /// The struct that the field with this name holds, or holds an array of.
    pub fn nested(&self, name: &str) -> Option<&'static StructSchema> {
        match self.fields[self.field_index(name)?].kind {
            FieldType::Struct(schema) | FieldType::Array(&FieldType::Struct(schema)) => Some(schema),
            _ => None,
        }
    }

    fn min_size(&self, version: i16, flexible: bool) -> usize {
        let plain = self.fields.iter().filter(|field| field.is_plain(version));
        let fields: usize = plain
            .map(|field| match field.kind {
                FieldType::Struct(_) if field.nullable.contains(version) => 1,
                kind => kind.min_size(version, flexible),
            })
            .sum();
        fields + usize::from(flexible)
    }
}

/// One message: a request, a response, or data that travels inside one or in a record.
#[derive(Debug)]
pub struct Schema {
    /// As Kafka calls it, without "Request" and "Response".
    pub name: &'static str,
    /// The API's key, or `None` for data.
    pub api_key: Option<i16>,
    /// `None` for data.
    pub direction: Option<Direction>,
    pub(crate) valid: Versions,
    pub(crate) flexible: Versions,
    pub root: &'static StructSchema,
}

impl Schema {
    /// The stable versions of this message; unstable ones are not in the table.
    pub fn valid_versions(&self) -> Versions {
        self.valid
    }

    /// The versions with compact lengths and tagged fields (KIP-482).
    pub fn flexible_versions(&self) -> Versions {
        self.flexible
    }

    /// The position of a top-level field.
    pub fn field_index(&self, name: &str) -> Option<usize> {
        self.root.field_index(name)
    }

    /// The struct reached through these field names, as in `schema.nested(&["topics", "partitions"])`.
    pub fn nested(&self, path: &[&str]) -> Option<&'static StructSchema> {
        path.iter()
            .try_fold(self.root, |schema, name| schema.nested(name))
    }

    /// A message with every field at its default.
    pub fn message(&self) -> Struct {
        Struct::new(self.root)
    }

    pub(crate) fn check_version(&self, version: i16) -> Result<(), ProtocolError> {
        if self.valid.contains(version) {
            return Ok(());
        }
        Err(ProtocolError::UnsupportedVersion {
            message: self.to_string(),
            version,
            valid: self.valid,
        })
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.direction {
            Some(Direction::Request) => write!(out, "{}Request", self.name),
            Some(Direction::Response) => write!(out, "{}Response", self.name),
            None => out.write_str(self.name),
        }
    }
}
