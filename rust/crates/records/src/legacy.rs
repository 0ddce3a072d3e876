//! Message sets v0 and v1.
