//! Tasks in child processes: good ones in Python, and children that break every rule. All of them are real processes.

mod end_to_end;
mod exec;
mod kills;
mod limits;
mod python;
mod rogues;
mod support;
