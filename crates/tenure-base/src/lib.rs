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
mod class;
mod executor;
mod lease;
mod text;
mod token;
mod upload_id;
mod wait;

#[cfg(target_os = "linux")]
pub use boot_timer::BootTimer;
pub use class::Class;
pub use executor::block_on;
pub use lease::{Lease, boottime};
pub use text::{HumanDuration, host_name, printable};
pub use token::{Token, jittered, random_bytes, random_fraction};
pub use upload_id::{UploadId, UploadIdError};
pub use wait::Wait;
