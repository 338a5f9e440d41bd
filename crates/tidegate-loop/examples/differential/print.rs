//! Programs as people read them: close to the Python that the oracle acts out.

use std::fmt::{self, Display, Formatter};

use crate::program::{Action, Block, Callback, Ending, Limit, Program, Start, Stmt};

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ending = match self.ending {
            Ending::CancelRest => "the rest is cancelled when main ends",
            Ending::LetRestFinish => "the rest may finish when main ends",
            Ending::CloseRunner => "main is run by a runner, which closes",
            Ending::RunTwice => "main and body 1 are run by a runner, which closes",
        };
        writeln!(f, "# seed {}; {ending}", self.seed)?;
        for (number, body) in self.bodies.iter().enumerate() {
            if number > 0 && body.is_empty() {
                continue;
            }
            match number {
                0 => writeln!(f, "main:")?,
                _ => writeln!(f, "body {number}:")?,
            }
            block(f, body, 1)?;
        }
        Ok(())
    }
}

fn block(f: &mut Formatter<'_>, stmts: &Block, depth: usize) -> fmt::Result {
    if stmts.is_empty() {
        return line(f, depth, "pass");
    }
    stmts.iter().try_for_each(|stmt| statement(f, stmt, depth))
}

fn line(f: &mut Formatter<'_>, depth: usize, text: impl Display) -> fmt::Result {
    writeln!(f, "{:1$}{text}", "", depth * 4)
}

fn statement(f: &mut Formatter<'_>, stmt: &Stmt, depth: usize) -> fmt::Result {
    match stmt {
        Stmt::Do(action) => act(f, action, depth),
        Stmt::Sleep(ticks) => line(f, depth, format_args!("await sleep({ticks})")),
        Stmt::Yield => line(f, depth, "await yield_now()"),
        Stmt::AwaitTask(task) => line(f, depth, format_args!("await task[{task}]")),
        Stmt::Join(task) => line(f, depth, format_args!("await handle_of(task[{task}])")),
        Stmt::AwaitFuture(future) => line(f, depth, format_args!("await future[{future}]")),
        Stmt::AwaitSelf => line(f, depth, "await current_task()"),
        Stmt::Call(body) => line(f, depth, format_args!("await body{body}()")),
        Stmt::Wait { tasks, mode, limit } => {
            line(f, depth, format_args!("await wait(task{tasks:?}, {mode:?}, limit={limit:?})"))
        }
        Stmt::Gather { tasks, keep_errors } => {
            line(f, depth, format_args!("await gather(task{tasks:?}, return_exceptions={keep_errors})"))
        }
        Stmt::Shield(task) => line(f, depth, format_args!("await shield(task[{task}])")),
        Stmt::WaitFor { task, limit } => line(f, depth, format_args!("await wait_for(task[{task}], {limit})")),
        Stmt::AsCompleted { tasks, take } => {
            line(f, depth, format_args!("for next in as_completed(task{tasks:?})[:{take}]: await next"))
        }
        Stmt::Timeout { limit, movable, body } => {
            let name = if *movable { "movable_timeout" } else { "timeout" };
            line(f, depth, format_args!("async with {name}({limit}):"))?;
            block(f, body, depth + 1)
        }
        Stmt::Reschedule(limit) => line(f, depth, format_args!("timeout.reschedule({limit})")),
        Stmt::Group { place, body } => {
            line(f, depth, format_args!("async with TaskGroup() as group[{place}]:"))?;
            block(f, body, depth + 1)
        }
        Stmt::Try { body, handlers, finally } => {
            line(f, depth, "try:")?;
            block(f, body, depth + 1)?;
            for handler in handlers {
                line(f, depth, format_args!("except {:?}:", handler.catches))?;
                block(f, &handler.body, depth + 1)?;
            }
            if let Some(finally) = finally {
                line(f, depth, "finally:")?;
                block(f, finally, depth + 1)?;
            }
            Ok(())
        }
        Stmt::Raise(number) => line(f, depth, format_args!("raise Error({number})")),
        Stmt::Reraise => line(f, depth, "raise"),
        Stmt::Return(value) => line(f, depth, format_args!("return {value}")),
    }
}

fn act(f: &mut Formatter<'_>, action: &Action, depth: usize) -> fmt::Result {
    match action {
        Action::Spawn { place, body, start } => {
            let how = match start {
                Start::Queued => String::new(),
                Start::Eager => ", eager".into(),
                Start::Inside(context) => format!(", context[{context}]"),
            };
            line(f, depth, format_args!("task[{place}] = spawn(body{body}{how})"))
        }
        Action::Cancel(task) => line(f, depth, format_args!("task[{task}].cancel()")),
        Action::GroupSpawn { group, place, body } => {
            line(f, depth, format_args!("task[{place}] = group[{group}].spawn(body{body})"))
        }
        Action::UncancelTask(task) => line(f, depth, format_args!("task[{task}].uncancel()")),
        Action::CancelSelf => line(f, depth, "current_task().cancel()"),
        Action::Uncancel => line(f, depth, "current_task().uncancel()"),
        Action::ShowTask(task) => line(f, depth, format_args!("print(task[{task}])")),
        Action::NewFuture(future) => line(f, depth, format_args!("future[{future}] = create_future()")),
        Action::SetResult(future, value) => line(f, depth, format_args!("future[{future}].set_result({value})")),
        Action::SetError(future, number) => {
            line(f, depth, format_args!("future[{future}].set_exception(Error({number}))"))
        }
        Action::CancelFuture(future) => line(f, depth, format_args!("future[{future}].cancel()")),
        Action::ShowFuture(future) => line(f, depth, format_args!("print(future[{future}])")),
        Action::CallSoon { place, callback } => calls(f, depth, format_args!("handle[{place}] = call_soon"), callback),
        Action::CallLater { place, delay, callback } => {
            calls(f, depth, format_args!("handle[{place}] = call_later({delay})"), callback)
        }
        Action::CallAt { place, when, callback } => {
            calls(f, depth, format_args!("handle[{place}] = call_at({when})"), callback)
        }
        Action::CancelHandle(handle) => line(f, depth, format_args!("handle[{handle}].cancel()")),
        Action::OnTaskDone { mark, task, callback } => {
            calls(f, depth, format_args!("mark[{mark}] = task[{task}].add_done_callback"), callback)
        }
        Action::OnFutureDone { mark, future, callback } => {
            calls(f, depth, format_args!("mark[{mark}] = future[{future}].add_done_callback"), callback)
        }
        Action::RemoveCallback(mark) => line(f, depth, format_args!("remove_done_callback(mark[{mark}])")),
        Action::SetVar { var, value, token } => line(f, depth, format_args!("token[{token}] = var{var}.set({value})")),
        Action::GetVar(var) => line(f, depth, format_args!("print(var{var}.get())")),
        Action::ResetVar(token) => line(f, depth, format_args!("reset(token[{token}])")),
        Action::CopyContext(context) => line(f, depth, format_args!("context[{context}] = copy_context()")),
        Action::Fail(number) => line(f, depth, format_args!("raise Error({number})")),
        Action::Stop => line(f, depth, "loop.stop()"),
        Action::Interrupt => line(f, depth, "raise KeyboardInterrupt"),
    }
}

fn calls(f: &mut Formatter<'_>, depth: usize, what: impl Display, callback: &Callback) -> fmt::Result {
    line(f, depth, format_args!("{what} c{}:", callback.label))?;
    if callback.actions.is_empty() {
        return line(f, depth + 1, "pass");
    }
    callback.actions.iter().try_for_each(|action| act(f, action, depth + 1))
}

impl Display for Limit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Limit::In(ticks) => write!(f, "{ticks}"),
            Limit::At(ticks) => write!(f, "at={ticks}"),
            Limit::Never => f.write_str("None"),
        }
    }
}
