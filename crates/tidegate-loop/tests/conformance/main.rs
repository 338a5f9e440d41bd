//! The contract of the loop, case by case: what asyncio does, reproduced on CPython 3.13. A test bears the number and
//! the claim of its case. Everything runs in strict mode under virtual time unless the case is about real time or
//! threads; where tidegate refines CPython the test says so.

mod cancellation;
mod combinators;
mod context;
mod future;
mod loop_;
mod relaxed;
mod support;
mod task;
