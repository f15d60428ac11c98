//! All of a space as bytes.
use super::Space;
