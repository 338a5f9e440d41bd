//! hyper's runtime traits, implemented for the loop: [`Io`] makes a hyper stream of any `futures_io` stream, [`LoopTimer`]
//! sleeps, [`LoopExecutor`] spawns. For programs that use hyper's own builders on the loop.

mod executor;
mod io;
mod timer;

pub use executor::LoopExecutor;
pub use io::Io;
pub(crate) use io::poll_read_into;
pub use timer::LoopTimer;
