//! The tree that a message is decoded to and encoded from, and its schema.
//!
//! A struct knows its schema, so fields can be found by name. Hot paths look an index up once with
//! [`StructSchema::field_index`] and use `message[index]`.

mod schema;
mod text;

use std::fmt;
use std::ops::{Index, IndexMut};

use bytes::Bytes;

pub use self::schema::{Direction, Field, FieldType, Schema, StructSchema};
pub use self::text::Str;

/// The value of one field. Bytes and strings are slices of the buffer they were decoded from.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Value {
    #[default]
    Null,
    Bool(bool),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    U16(u16),
    U32(u32),
    F64(f64),
    Uuid([u8; 16]),
    Str(Str),
    /// `bytes` and `records`.
    Bytes(Bytes),
    Array(Vec<Value>),
    Struct(Struct),
    /// `records` of this many bytes that the caller sends itself; see [`crate::encode_response_with_gaps`].
    Gap(u32),
}

impl Value {
    /// A field of a struct, in time linear in the number of fields. `None` for any other value.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.as_struct()?.get(name)
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    pub fn as_i8(&self) -> Option<i8> {
        if let Self::I8(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    pub fn as_i16(&self) -> Option<i16> {
        if let Self::I16(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    pub fn as_i32(&self) -> Option<i32> {
        if let Self::I32(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    pub fn as_i64(&self) -> Option<i64> {
        if let Self::I64(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    pub fn as_uuid(&self) -> Option<[u8; 16]> {
        if let Self::Uuid(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Self::Str(value) = self {
            Some(value)
        } else {
            None
        }
    }

    pub fn as_bytes(&self) -> Option<&Bytes> {
        if let Self::Bytes(value) = self {
            Some(value)
        } else {
            None
        }
    }

    pub fn as_array(&self) -> Option<&[Value]> {
        if let Self::Array(values) = self {
            Some(values)
        } else {
            None
        }
    }

    pub fn as_struct(&self) -> Option<&Struct> {
        if let Self::Struct(value) = self {
            Some(value)
        } else {
            None
        }
    }

    /// The structs of an array; none for null.
    pub fn structs(&self) -> impl Iterator<Item = &Struct> {
        self.as_array()
            .unwrap_or_default()
            .iter()
            .filter_map(Value::as_struct)
    }

    /// The name of the variant in error messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::I8(_) => "int8",
            Self::I16(_) => "int16",
            Self::I32(_) => "int32",
            Self::I64(_) => "int64",
            Self::U16(_) => "uint16",
            Self::U32(_) => "uint32",
            Self::F64(_) => "float64",
            Self::Uuid(_) => "uuid",
            Self::Str(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Array(_) => "array",
            Self::Struct(_) => "struct",
            Self::Gap(_) => "gap",
        }
    }
}

/// A struct: one value for each field of its schema, in the schema's order, in every version.
#[derive(Clone, PartialEq)]
pub struct Struct {
    schema: &'static StructSchema,
    fields: Box<[Value]>,
}

impl PartialEq for StructSchema {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Struct {
    /// Every field at its default.
    pub fn new(schema: &'static StructSchema) -> Self {
        let fields = schema.fields.iter().map(|field| field.default.clone()).collect();
        Self { schema, fields }
    }

    /// `fields` must have one value for each field of the schema. Types are checked when it is encoded.
    ///
    /// # Panics
    /// If it has more or fewer.
    pub fn from_fields(schema: &'static StructSchema, fields: Vec<Value>) -> Self {
        assert_eq!(fields.len(), schema.fields.len(), "fields of {}", schema.name);
        Self {
            schema,
            fields: fields.into_boxed_slice(),
        }
    }

    pub fn schema(&self) -> &'static StructSchema {
        self.schema
    }

    pub fn fields(&self) -> &[Value] {
        &self.fields
    }

    /// A field by name, in time linear in the number of fields.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.schema.field_index(name).map(|index| &self.fields[index])
    }

    /// Sets a field by name.
    ///
    /// # Panics
    /// If the schema has no such field.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        *self.slot(name) = value.into();
        self
    }

    /// Like [`Struct::set`], to build a struct in one expression.
    ///
    /// # Panics
    /// If the schema has no such field.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// A new struct for a field, which has a struct or an array of structs. Its fields are at their defaults.
    ///
    /// # Panics
    /// If the schema has no such field.
    pub fn element(&self, name: &str) -> Struct {
        match self.schema.nested(name) {
            Some(schema) => Struct::new(schema),
            None => panic!("{} has no field {name:?} of structs", self.schema.name),
        }
    }

    /// Appends to an array, or to null as if it were an empty one.
    ///
    /// # Panics
    /// If the schema has no such field, or it is not an array.
    pub fn push(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        let value = value.into();
        match self.slot(name) {
            Value::Array(values) => values.push(value),
            slot @ Value::Null => *slot = Value::Array(vec![value]),
            slot => panic!("{name:?} is a {}, not an array", slot.kind()),
        }
        self
    }

    /// Takes a field's value and leaves null behind.
    pub fn take(&mut self, index: usize) -> Value {
        std::mem::take(&mut self.fields[index])
    }

    fn slot(&mut self, name: &str) -> &mut Value {
        match self.schema.field_index(name) {
            Some(index) => &mut self.fields[index],
            None => panic!("{} has no field {name:?}", self.schema.name),
        }
    }
}

impl Index<usize> for Struct {
    type Output = Value;
    fn index(&self, index: usize) -> &Value {
        &self.fields[index]
    }
}

impl IndexMut<usize> for Struct {
    fn index_mut(&mut self, index: usize) -> &mut Value {
        &mut self.fields[index]
    }
}

impl fmt::Debug for Struct {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = out.debug_struct(self.schema.name);
        for (field, value) in self.schema.fields.iter().zip(&self.fields) {
            map.field(field.name, value);
        }
        map.finish()
    }
}

macro_rules! into_value {
    ($($from:ty => $variant:ident),* $(,)?) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}

into_value! {
    bool => Bool, i8 => I8, i16 => I16, i32 => I32, i64 => I64, u16 => U16, u32 => U32, f64 => F64,
    [u8; 16] => Uuid, Str => Str, &str => Str, String => Str, Bytes => Bytes, Vec<u8> => Bytes,
    Vec<Value> => Array, Struct => Struct,
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl From<Vec<Struct>> for Value {
    fn from(values: Vec<Struct>) -> Self {
        Self::Array(values.into_iter().map(Self::Struct).collect())
    }
}

impl From<Vec<i32>> for Value {
    fn from(values: Vec<i32>) -> Self {
        Self::Array(values.into_iter().map(Self::I32).collect())
    }
}

/// The default of a field whose definition names none.
pub(crate) fn zero(kind: FieldType) -> Value {
    match kind {
        FieldType::Bool => Value::Bool(false),
        FieldType::Int8 => Value::I8(0),
        FieldType::Int16 => Value::I16(0),
        FieldType::Int32 => Value::I32(0),
        FieldType::Int64 => Value::I64(0),
        FieldType::Uint16 => Value::U16(0),
        FieldType::Uint32 => Value::U32(0),
        FieldType::Float64 => Value::F64(0.0),
        FieldType::Uuid => Value::Uuid([0; 16]),
        FieldType::String => Value::Str(Str::default()),
        FieldType::Bytes => Value::Bytes(Bytes::new()),
        FieldType::Records => Value::Null,
        FieldType::Array(_) => Value::Array(Vec::new()),
        FieldType::Struct(schema) => Value::Struct(Struct::new(schema)),
    }
}
