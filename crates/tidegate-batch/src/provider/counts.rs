//! What an answer says it cost, read in passing. Every answer is asked for it, and a tree of all that it says would cost
//! more than sending the request did.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The counts of an object; whatever else is in it is passed over.
#[derive(Debug)]
pub(super) struct Counts<'a>(Vec<(&'a str, u64)>);

impl Counts<'_> {
    /// As a tree would have it: of two the last, and none is nothing.
    pub(super) fn of(&self, name: &str) -> u64 {
        self.0.iter().rev().find(|(it, _)| *it == name).map_or(0, |(_, count)| *count)
    }
}

/// The parts of an answer that say what it cost, whoever's it is.
#[derive(Debug, Deserialize)]
pub(super) struct Metered<'a> {
    #[serde(borrow)]
    pub(super) usage: Option<Counts<'a>>,
    #[serde(borrow, rename = "usageMetadata")]
    pub(super) usage_metadata: Option<Counts<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Counts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Counts<'a>, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Counts<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of counts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Counts<'de>, A::Error> {
                let mut counts = Vec::new();
                while let Some((name, Count(count))) = map.next_entry()? {
                    counts.push((name, count));
                }
                Ok(Counts(counts))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// A whole number; anything else is none.
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Count, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_u64<E>(self, count: u64) -> Result<Count, E> {
                Ok(Count(count))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Count, E> {
                Ok(Count(0))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Count, E> {
                Ok(Count(0))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Count, E> {
                Ok(Count(0))
            }

            fn visit_str<E>(self, _: &str) -> Result<Count, E> {
                Ok(Count(0))
            }

            fn visit_unit<E>(self) -> Result<Count, E> {
                Ok(Count(0))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Count, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Count(0))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Count, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Count(0))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use crate::provider::Dialect;
    use crate::question::Usage;

    /// Plain and odd, as servers and gateways send them.
    const BODIES: [&str; 14] = [
        r#"{"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}}"#,
        r#"{"choices":[{"usage":{"prompt_tokens":1}}],"usage":{"prompt_tokens":7,"total_tokens":29,"details":{"prompt_tokens":3}}}"#,
        r#"{"usage":{"prompt_tokens":-1,"completion_tokens":2.5,"total_tokens":"29","a":null,"b":[1,[2]],"c":true}}"#,
        r#"{"usage":{"prompt_tokens":1,"prompt_tokens":2}}"#,
        r#"{"usage":{"prompt\u005ftokens":5}}"#,
        r#"{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":2}}"#,
        r#"{"usage":null}"#,
        r#"{"usage":[1,2]}"#,
        r#"{"usage":"much"}"#,
        r#"{"usage":{"input_tokens":12,"cache_creation_input_tokens":3,"output_tokens":6}}"#,
        r#"{"usageMetadata":{"promptTokenCount":300,"candidatesTokenCount":20,"thoughtsTokenCount":50,"totalTokenCount":370}}"#,
        "[]",
        "{}",
        "<html>",
    ];

    #[test]
    fn what_is_read_in_passing_is_what_a_tree_says() {
        for body in BODIES {
            let tree: Option<Value> = serde_json::from_str(body).ok();
            for dialect in [Dialect::OpenAi, Dialect::Gemini, Dialect::Anthropic] {
                let usage = tree.as_ref().and_then(|tree| dialect.usage(tree));
                assert_eq!(dialect.usage_in(body.as_bytes()), usage, "{dialect:?} {body}");
            }
        }
        let usage = Usage { input_tokens: 19, output_tokens: 10 };
        assert_eq!(Dialect::OpenAi.usage_in(BODIES[0].as_bytes()), Some(usage));
    }
}
