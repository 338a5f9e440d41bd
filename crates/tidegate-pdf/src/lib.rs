//! The pages of a PDF as text and pictures, read in a child process that is bounded in time and memory.

#![forbid(unsafe_code)]
