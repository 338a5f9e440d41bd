//! A server that explains, in whichever dialect.

use tidegate_limit::Cost;

use super::{Asked, Asking, BadModel, Dialect, Parameters, Provider};
use crate::call::{Call, CallerStats};
use crate::call_error::CallError;
use crate::caller::Caller;
use crate::estimate::{ANSWER_TOKENS, Estimate, tokens_of_question};
use crate::no_pictures;
use crate::question::Question;
use crate::run::ItemScope;

/// A provider behind an address.
#[derive(Debug)]
pub struct Remote {
    caller: Caller,
    parameters: Parameters,
    identity: String,
    pictures: bool,
}

impl Remote {
    /// Asks through `caller`.
    #[must_use]
    pub fn new(caller: Caller, parameters: Parameters) -> Remote {
        let identity = format!(
            "{} {} {} max_tokens={:?} temperature={:?}",
            caller.dialect().name(),
            caller.base_url(),
            parameters.model,
            parameters.max_tokens,
            parameters.temperature
        );
        Remote { caller, parameters, identity, pictures: true }
    }

    /// Whether the model takes pictures; it does unless set.
    #[must_use]
    pub fn with_pictures(mut self, pictures: bool) -> Remote {
        self.pictures = pictures;
        self
    }

    /// Through whom it asks.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    fn call(&self, question: &Question) -> Result<Call, BadModel> {
        let dialect = self.caller.dialect();
        let estimate = self.estimate(question);
        let admitted_tokens = match (dialect, self.parameters.max_tokens) {
            // Counted when the request comes, and not given back.
            (Dialect::OpenAi, Some(max_tokens)) => u64::from(max_tokens),
            _ => 0,
        };
        let path = dialect.path(&self.parameters.model)?;
        let body = dialect.body(question, &self.parameters);
        Ok(Call { admitted_tokens, ..Call::new(path, body, estimate) })
    }
}

impl Provider for Remote {
    fn identity(&self) -> &str {
        &self.identity
    }

    fn model(&self) -> &str {
        &self.parameters.model
    }

    fn takes_pictures(&self) -> bool {
        self.pictures
    }

    fn estimate(&self, question: &Question) -> Estimate {
        let output_tokens = self.parameters.max_tokens.map_or(ANSWER_TOKENS, u64::from);
        Estimate { input_tokens: tokens_of_question(question), output_tokens }
    }

    fn traffic(&self) -> CallerStats {
        self.caller.stats()
    }

    fn typical_cost(&self) -> Cost {
        self.caller.typical_cost()
    }

    fn ask<'a>(&'a self, scope: &'a ItemScope, question: &'a Question) -> Asking<'a> {
        Box::pin(async move {
            let call = self.call(question)?;
            let dialect = self.caller.dialect();
            let asked = self.caller.call_within(scope, &call, |body| dialect.answer(body), None).await;
            let (reply, _) = asked.map_err(|error| match error {
                CallError::Refused { status, message, body }
                    if question.picture.is_some() && no_pictures::says_so(&body) =>
                {
                    CallError::NoPictures { status, message }
                }
                error => error,
            })?;
            Ok(Asked::new(reply.value, reply.attempts))
        })
    }
}
