//! The weight of a decoded message: the memory of its values and of the Python objects that the extension
//! makes of them.
//!
//! A struct of three small fields may have two bytes on the wire and five hundred in memory. Weights are for
//! a 64-bit machine and rounded up:
//!
//! - a value is `size_of::<Value>()`, and an allocation has up to 16 bytes of glibc's;
//! - Python's objects were measured with `tracemalloc` on CPython 3.11 (layouts: `dictobject.c`,
//!   `listobject.c`, `unicodeobject.c`; later versions need less) and rounded to the 16 bytes of its
//!   allocator.
//!
//! The memory of the response is not included.

use crate::value::{Field, FieldType, Value};

/// The front and the rounding of an allocation.
const HEAP: usize = 16;
/// A dict with interned strings as keys has 184, 272, 464 and 832 bytes for up to 5, 10, 21 and 42 keys. 160
/// bytes and 32 for each key are never less.
const DICT: usize = 160;
const DICT_KEY: usize = 32;
/// A `list` without the references to its elements.
const LIST: usize = 64;
/// A reference in the list, and another while the list is built.
const LIST_ITEM: usize = 16;
/// A `str` of ASCII, or `bytes`, without its characters.
const TEXT: usize = 64;
/// Any other `str` without its characters, and the most bytes of a character.
const WIDE_TEXT: usize = 80;
const WIDEST: usize = 4;

/// A struct without its fields.
pub(crate) const STRUCT: usize = HEAP + DICT;
/// An array without its elements.
pub(crate) const ARRAY: usize = HEAP + LIST;

/// A field with the fixed part of its type, and with its default.
pub(crate) fn field(field: &Field) -> usize {
    let default = match &field.default {
        Value::Struct(default) => default.schema().weight,
        _ => 0,
    };
    size_of::<Value>() + DICT_KEY + object(&field.kind) + default
}

/// An element of an array with the fixed part of its type.
pub(crate) fn element(kind: &FieldType) -> usize {
    size_of::<Value>() + LIST_ITEM + object(kind)
}

/// The Python object of a number or a uuid. Types with a length or fields are weighed when they are read.
fn object(kind: &FieldType) -> usize {
    match kind {
        FieldType::Bool => 0,
        FieldType::Int8
        | FieldType::Int16
        | FieldType::Int32
        | FieldType::Uint16
        | FieldType::Uint32
        | FieldType::Float64 => 32,
        FieldType::Int64 => 48,
        FieldType::Uuid => 64,
        FieldType::String
        | FieldType::Bytes
        | FieldType::Records
        | FieldType::Array(_)
        | FieldType::Struct(_) => 0,
    }
}

/// A string. Its bytes are shared with the message here, but not in Python.
pub(crate) fn text(text: &str) -> usize {
    if text.is_ascii() {
        TEXT + text.len()
    } else {
        WIDE_TEXT + WIDEST * text.len()
    }
}

/// `bytes`, likewise.
pub(crate) fn bytes(length: usize) -> usize {
    TEXT + length
}
