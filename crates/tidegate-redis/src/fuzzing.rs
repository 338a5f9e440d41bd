//! What the fuzz targets call; see `fuzz/` at the root of the repository.

use tidegate_secret::{Redactor, Secret};

use crate::pipeline::{Event, Pipeline};
use crate::wire::Command;

/// Replies from any peer: bounded, and the same in one piece as in two. The first byte says where they are cut.
pub fn replies(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else { return };
    let cut = usize::from(*cut).min(bytes.len());
    assert_eq!(run(&[bytes]), run(&[&bytes[..cut], &bytes[cut..]]));
}

/// How many answers and messages there were, and whether the connection would be closed.
fn run(pieces: &[&[u8]]) -> (usize, usize, bool) {
    let mut pipeline = Pipeline::new(4096, Redactor::new([&Secret::new("hunter2")]));
    for asker in 0..8 {
        pipeline.submit(&Command::new("A"), asker, &mut Vec::new());
    }
    let (mut answers, mut messages) = (0, 0);
    for piece in pieces {
        pipeline.handle_bytes(piece);
        loop {
            match pipeline.poll_event() {
                Ok(Some(Event::Answer(asker, _))) => {
                    assert_eq!(asker, answers, "answers come in the order of the commands");
                    answers += 1;
                }
                Ok(Some(_)) => messages += 1,
                Ok(None) => break,
                Err(_) => return (answers, messages, true),
            }
        }
    }
    (answers, messages, false)
}
