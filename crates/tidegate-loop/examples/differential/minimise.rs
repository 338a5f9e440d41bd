//! Makes a failing program small: parts are taken away for as long as it still fails.

use crate::program::{Action, Block, Callback, Program, Stmt};

/// The smallest program found by taking one part away at a time, `fails` deciding what still shows the fault.
pub(crate) fn minimise(mut program: Program, mut fails: impl FnMut(&Program) -> bool) -> Program {
    loop {
        let before = parts(&program);
        // From the back: what comes later depends on what comes earlier, so it is the first that can go.
        for number in (0..before).rev() {
            for cut in [Cut::Remove, Cut::Unwrap] {
                let mut smaller = program.clone();
                let mut pruner = Pruner { left: number, cut };
                if pruner.program(&mut smaller) && fails(&smaller) {
                    program = smaller;
                    break;
                }
            }
        }
        if parts(&program) >= before {
            return program;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// The part goes with all it holds.
    Remove,
    /// The part goes, and the block it held takes its place.
    Unwrap,
}

fn parts(program: &Program) -> usize {
    // Counting is pruning a part that is never reached.
    let mut counter = Pruner { left: usize::MAX, cut: Cut::Remove };
    counter.program(&mut program.clone());
    usize::MAX - counter.left
}

/// Walks a program and cuts the part whose turn it is when `left` has come down to nought.
struct Pruner {
    left: usize,
    cut: Cut,
}

impl Pruner {
    /// Whether something was cut.
    fn program(&mut self, program: &mut Program) -> bool {
        program.bodies.iter_mut().any(|body| self.block(body))
    }

    fn turn(&mut self) -> bool {
        if self.left == 0 {
            return true;
        }
        self.left -= 1;
        false
    }

    fn block(&mut self, block: &mut Block) -> bool {
        for index in 0..block.len() {
            if self.turn() {
                return self.cut_statement(block, index);
            }
            if self.inside(&mut block[index]) {
                return true;
            }
        }
        false
    }

    fn cut_statement(&mut self, block: &mut Block, index: usize) -> bool {
        let stmt = block.remove(index);
        if self.cut == Cut::Remove {
            return true;
        }
        let (Stmt::Timeout { body, .. } | Stmt::Group { body, .. } | Stmt::Try { body, .. }) = stmt else {
            return false;
        };
        block.splice(index..index, body);
        true
    }

    fn inside(&mut self, stmt: &mut Stmt) -> bool {
        match stmt {
            Stmt::Do(action) => self.action(action),
            Stmt::Timeout { body, .. } | Stmt::Group { body, .. } => self.block(body),
            Stmt::Try { body, handlers, finally } => {
                if self.block(body) {
                    return true;
                }
                for index in 0..handlers.len() {
                    if self.turn() {
                        handlers.remove(index);
                        return self.cut == Cut::Remove;
                    }
                    if self.block(&mut handlers[index].body) {
                        return true;
                    }
                }
                if finally.is_some() && self.turn() {
                    *finally = None;
                    return self.cut == Cut::Remove;
                }
                finally.as_mut().is_some_and(|block| self.block(block))
            }
            Stmt::Wait { tasks, .. } | Stmt::Gather { tasks, .. } | Stmt::AsCompleted { tasks, .. } => {
                for index in 0..tasks.len() {
                    if self.turn() {
                        tasks.remove(index);
                        return self.cut == Cut::Remove;
                    }
                }
                false
            }
            _ => false,
        }
    }

    fn action(&mut self, action: &mut Action) -> bool {
        match action {
            Action::CallSoon { callback, .. }
            | Action::CallLater { callback, .. }
            | Action::CallAt { callback, .. }
            | Action::OnTaskDone { callback, .. }
            | Action::OnFutureDone { callback, .. } => self.callback(callback),
            _ => false,
        }
    }

    fn callback(&mut self, callback: &mut Callback) -> bool {
        for index in 0..callback.actions.len() {
            if self.turn() {
                callback.actions.remove(index);
                return self.cut == Cut::Remove;
            }
            if self.action(&mut callback.actions[index]) {
                return true;
            }
        }
        false
    }
}
