//! Values and clocks that the crates of Tenure share. Builds on every platform.
//!
//! ```text
//!   Lease   BootTimer          lease arithmetic, on a clock that includes suspended time
//!   Token   jittered           random numbers
//!   Class   Wait               classes of failures, wait modes
//!   printable  HumanDuration   text for people
//!   block_on   host_name
//! ```

#[cfg(target_os = "linux")]
mod boot_timer;
mod display;
mod error;
mod executor;
mod lease;
mod random;
mod upload_id;
mod wait;

#[cfg(target_os = "linux")]
pub use boot_timer::BootTimer;
pub use display::{HumanDuration, host_name, printable};
pub use error::Class;
pub use executor::block_on;
pub use lease::{Lease, boottime};
pub use random::{Token, jittered, random_bytes, random_fraction};
pub use upload_id::{UploadId, UploadIdError};
pub use wait::Wait;
