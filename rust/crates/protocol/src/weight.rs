//! What a decoded message weighs: how much memory its values have, and what is made of them.
//!
//! A struct of three small fields may be two bytes on the wire; as [`Value`]s and as the Python objects an extension makes of
//! those it has five hundred. The weights are those of a 64-bit machine, rounded up: a value is `size_of::<Value>()`, an
//! allocation has up to 16 bytes of glibc's, and the objects were measured with `tracemalloc` on CPython 3.11 (the layouts are
//! those of `dictobject.c`, `listobject.c` and `unicodeobject.c`; later versions have less) and rounded to the 16 bytes of
//! its allocator. Whoever makes other things of the values makes about as much. What is made to answer is not in it.

use crate::schema::{Field, FieldType};
use crate::value::Value;

/// An allocation's head and what is lost to its rounding.
const HEAP: usize = 16;
/// A dict of n keys, all interned strings, has 64 bytes itself and 184, 272, 464 and 832 in all for up to 5, 10, 21 and 42
/// keys, which 160 and 32 a key are never below.
const DICT: usize = 160;
const DICT_KEY: usize = 32;
/// `list`, without its elements' references.
const LIST: usize = 64;
/// A reference in the list, and one while the list is made.
const LIST_ITEM: usize = 16;
/// `str` of ASCII, or `bytes`, beside its length.
const TEXT: usize = 64;
/// Another `str`, beside four bytes for each of its characters if one of them needs as many.
const WIDE_TEXT: usize = 80;
const WIDEST: usize = 4;

/// A struct, without its fields.
pub(crate) const STRUCT: usize = HEAP + DICT;
/// An array, without its elements.
pub(crate) const ARRAY: usize = HEAP + LIST;

/// A field, with what its type always has and what it has while it is absent.
pub(crate) fn field(field: &Field) -> usize {
    let default = match &field.default {
        Value::Struct(default) => default.schema().weight,
        _ => 0,
    };
    size_of::<Value>() + DICT_KEY + object(&field.kind) + default
}

/// An element of an array, with what its type always has.
pub(crate) fn element(kind: &FieldType) -> usize {
    size_of::<Value>() + LIST_ITEM + object(kind)
}

/// `int`, `float` and an uuid's `bytes`. What has a length or fields is weighed when it is read.
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

/// A string, whose bytes are shared with the message here but not in Python.
pub(crate) fn text(text: &str) -> usize {
    if text.is_ascii() {
        TEXT + text.len()
    } else {
        WIDE_TEXT + WIDEST * text.len()
    }
}

/// `bytes`, the same way.
pub(crate) fn bytes(length: usize) -> usize {
    TEXT + length
}
