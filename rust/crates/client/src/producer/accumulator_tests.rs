//! If these fail, a retried batch may be doubled, lost or overtaken.
