//! What hyper asks of a runtime, answered by the loop: [`Io`] turns any `futures_io` stream into hyper's, [`LoopTimer`]
//! sleeps, [`LoopExecutor`] spawns. The client and the server stand on the first; the other two are for those who use
//! hyper's own builders on the loop.

mod executor;
mod io;
mod timer;

pub use executor::LoopExecutor;
pub use io::Io;
pub(crate) use io::poll_read_into;
pub use timer::LoopTimer;
