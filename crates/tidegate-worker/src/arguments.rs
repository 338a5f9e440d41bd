//! From a task's arguments, which came from anywhere, to a function's parameters, which have types.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::context::TaskContext;
use crate::json;
use crate::task::Task;

/// A parameter of a handler: anything that can be deserialised is taken from the task's arguments, [`TaskContext`] is the
/// run itself.
pub trait FromTask: Sized {
    /// Takes this parameter out of what is left.
    ///
    /// # Errors
    /// What does not fit, in words.
    fn from_task(arguments: &mut Arguments) -> Result<Self, String>;
}

impl<T: DeserializeOwned> FromTask for T {
    fn from_task(arguments: &mut Arguments) -> Result<T, String> {
        arguments.next()
    }
}

impl FromTask for TaskContext {
    fn from_task(arguments: &mut Arguments) -> Result<TaskContext, String> {
        Ok(arguments.context.clone())
    }
}

/// A task's arguments while they are handed out, from left to right. Keyword arguments go as one object to the parameter
/// behind the last positional one, because a Rust function's parameters have no names at run time.
#[derive(Debug)]
pub struct Arguments {
    context: TaskContext,
    given: usize,
    positional: std::vec::IntoIter<Value>,
    keywords: Map<String, Value>,
    taken: usize,
}

impl Arguments {
    pub(crate) fn new(task: Task, context: TaskContext) -> Arguments {
        Arguments {
            context,
            given: task.args.len(),
            positional: task.args.into_iter(),
            keywords: task.kwargs,
            taken: 0,
        }
    }

    pub(crate) fn take<T: FromTask>(&mut self) -> Result<T, String> {
        T::from_task(self)
    }

    fn next<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        self.taken += 1;
        let place = self.taken;
        if let Some(value) = self.positional.next() {
            return json::from_value(value).map_err(|error| format!("argument {place} does not fit: {error}"));
        }
        if !self.keywords.is_empty() {
            let object = Value::Object(std::mem::take(&mut self.keywords));
            return json::from_value(object).map_err(|error| format!("keyword arguments do not fit: {error}"));
        }
        // What may be left out (an `Option`, a unit) can be made of nothing.
        serde_json::from_value(Value::Null).map_err(|_| format!("argument {place} is missing"))
    }

    /// Refuses arguments that were not taken, because the caller meant them to have an effect.
    pub(crate) fn finish(mut self) -> Result<(), String> {
        if self.positional.next().is_some() {
            return Err(format!("{} arguments were given, {} are taken", self.given, self.taken));
        }
        match self.keywords.keys().next() {
            Some(key) => Err(format!("keyword argument '{key}' is not taken; pass it by position, or take a struct")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::task::TaskId;

    fn arguments(args: Value, kwargs: Value) -> Arguments {
        let Value::Array(args) = args else { panic!() };
        let Value::Object(kwargs) = kwargs else { panic!() };
        let id = TaskId::from("t");
        let task = Task { id, args, kwargs, ..Task::new("n") };
        let context = TaskContext::new(&task, None, None, Instant::now());
        Arguments::new(task, context)
    }

    #[derive(Deserialize)]
    struct Mail {
        to: String,
    }

    #[test]
    fn positional_arguments_come_first_and_keywords_fill_the_last_parameter() {
        let mut given = arguments(json!([7]), json!({"to": "ann"}));
        assert_eq!(given.take::<u32>().unwrap(), 7);
        assert_eq!(given.take::<TaskContext>().unwrap().id().as_str(), "t");
        assert_eq!(given.take::<Mail>().unwrap().to, "ann");
        given.finish().unwrap();
    }

    #[test]
    fn what_does_not_fit_is_said_in_words() {
        let complaint = |args, kwargs| arguments(args, kwargs).take::<u32>().unwrap_err();
        assert!(complaint(json!(["seven"]), json!({})).starts_with("argument 1 does not fit: invalid type: string"));
        assert_eq!(complaint(json!([]), json!({})), "argument 1 is missing");
        assert!(complaint(json!([]), json!({"to": 1})).starts_with("keyword arguments do not fit: "));

        let mut given = arguments(json!([1, 2, 3]), json!({}));
        given.take::<u32>().unwrap();
        assert_eq!(given.finish().unwrap_err(), "3 arguments were given, 1 are taken");
        let given = arguments(json!([]), json!({"to": 1}));
        assert!(given.finish().unwrap_err().starts_with("keyword argument 'to' is not taken"));
    }

    #[test]
    fn an_option_may_be_left_out() {
        let mut given = arguments(json!([]), json!({}));
        assert_eq!(given.take::<Option<u32>>().unwrap(), None);
        given.finish().unwrap();
    }
}
