//! AMQP 0-9-1: a state machine without I/O, and its driver on the loop.

#![forbid(unsafe_code)]
