//! What can be read from the twin.
