//! The layout of a message: its structs, its fields, and the versions that have them.
//!
//! Schemas are built once from the table (`table.rs`). They live as long as the process and never change.

use std::fmt;

use super::{Struct, Value};
use crate::error::ProtocolError;
use crate::versions::Versions;

/// Whether a schema describes a request or its response.
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
    /// The name in error messages.
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

    /// The fewest bytes that a non-null value takes on the wire. Counts of elements are checked against it.
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
    /// The position of `name` in [`crate::field_names`]. Fields with the same name share it.
    pub name_id: usize,
    pub kind: FieldType,
    /// Versions that have the field.
    pub versions: Versions,
    /// Versions in which it may be null.
    pub nullable: Versions,
    /// Versions in which it is a tagged field.
    pub tagged: Versions,
    pub tag: u32,
    /// The value when a version lacks the field, or a sender left it out.
    pub default: Value,
    /// Whether encoding a version that lacks the field drops another value than the default, without an
    /// error.
    pub ignorable: bool,
}

impl Field {
    /// Whether the field is untagged in this version.
    #[inline]
    pub(crate) fn is_plain(&self, version: i16) -> bool {
        self.versions.contains(version) && !self.tagged.contains(version)
    }
}

/// The fields of a message, or of a struct inside it, in the order of the wire.
#[derive(Debug)]
pub struct StructSchema {
    /// The name of the field that has the struct, or of the message.
    pub name: &'static str,
    pub fields: Vec<Field>,
    /// The indexes of the fields with a tag, ordered by their tags.
    pub(crate) tagged: Vec<usize>,
    /// The memory of one struct with its fields at their defaults (`weight.rs`).
    pub(crate) weight: usize,
}

impl StructSchema {
    /// The index of the field with this name, for [`Struct`]'s indexing. Look it up once, outside of loops.
    pub fn field_index(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }

    /// The schema of the field with this name, which has a struct or an array of structs.
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

/// One message: a request, a response, or data inside one or in a record.
#[derive(Debug)]
pub struct Schema {
    /// Kafka's name, without "Request" and "Response".
    pub name: &'static str,
    /// `None` for data.
    pub api_key: Option<i16>,
    /// `None` for data.
    pub direction: Option<Direction>,
    pub(crate) valid: Versions,
    pub(crate) flexible: Versions,
    pub root: &'static StructSchema,
}

impl Schema {
    /// The stable versions. Unstable ones are not in the table.
    pub fn valid_versions(&self) -> Versions {
        self.valid
    }

    /// The versions with compact lengths and tagged fields (KIP-482).
    pub fn flexible_versions(&self) -> Versions {
        self.flexible
    }

    /// The index of a top-level field.
    pub fn field_index(&self, name: &str) -> Option<usize> {
        self.root.field_index(name)
    }

    /// The struct behind these field names, as in `schema.nested(&["topics", "partitions"])`.
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
