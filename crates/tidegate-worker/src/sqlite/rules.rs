//! What may stand in each column. The CHECK constraints of the tables say the same (`schema.rs`); these rules find the rows that
//! were written before there were constraints, or past them.

/// One column of a table.
pub(super) struct Rule {
    pub(super) table: &'static str,
    pub(super) column: &'static str,
    /// True, in SQL, for a value that is allowed.
    pub(super) holds: &'static str,
    /// The same in words.
    pub(super) expected: &'static str,
}

/// Which columns name a row of a table.
pub(super) const KEYS: &[(&str, &[&str])] = &[
    ("queue", &["id"]),
    ("task", &["seq"]),
    ("ready", &["queue", "rank", "seq"]),
    ("delayed", &["at", "seq"]),
    ("consumer", &["id"]),
    ("subscription", &["consumer", "queue"]),
    ("running", &["consumer", "seq"]),
    ("dead", &["seq"]),
    ("uniq", &["key"]),
    ("revoked", &["n"]),
    ("result", &["id"]),
];

const INTEGER: &str = "an integer";
const MAYBE_INTEGER: &str = "an integer or NULL";
const TEXT: &str = "text";
const MAYBE_TEXT: &str = "text or NULL";
const COUNT: &str = "an integer from 0 to 2147483647";
const RANK: &str = "an integer from 0 to 9 (9 - priority)";
const NUMBER: &str = "an integer from 1 to 9007199254740991";

macro_rules! rules {
    ($($table:ident: { $($column:ident: $holds:literal, $expected:expr;)* })*) => {
        &[$($(Rule {
            table: stringify!($table), column: stringify!($column), holds: $holds, expected: $expected,
        },)*)*]
    };
}

pub(super) const RULES: &[Rule] = rules! {
    queue: {
        name: "typeof(name) = 'text'", TEXT;
    }
    task: {
        seq: "seq BETWEEN 1 AND 9007199254740991", NUMBER;
        id: "typeof(id) = 'text'", TEXT;
        queue: "typeof(queue) = 'integer'", INTEGER;
        rank: "typeof(rank) = 'integer' AND rank BETWEEN 0 AND 9", RANK;
        published: "typeof(published) = 'integer'", INTEGER;
        eta: "typeof(eta) IN ('integer', 'null')", MAYBE_INTEGER;
        expires: "typeof(expires) IN ('integer', 'null')", MAYBE_INTEGER;
        ukey: "typeof(ukey) IN ('text', 'null')", MAYBE_TEXT;
        hold: "typeof(hold) IN ('integer', 'null')", MAYBE_INTEGER;
        headers: "typeof(headers) IN ('text', 'null')", "a JSON object or NULL";
        body: "typeof(body) IN ('blob', 'text')", "a BLOB or text";
    }
    ready: {
        queue: "typeof(queue) = 'integer'", INTEGER;
        rank: "typeof(rank) = 'integer' AND rank BETWEEN 0 AND 9", RANK;
        seq: "typeof(seq) = 'integer'", INTEGER;
        retries: "typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647", COUNT;
        crashes: "typeof(crashes) = 'integer' AND crashes BETWEEN 0 AND 2147483647", COUNT;
    }
    delayed: {
        at: "typeof(at) = 'integer'", INTEGER;
        seq: "typeof(seq) = 'integer'", INTEGER;
        retries: "typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647", COUNT;
        crashes: "typeof(crashes) = 'integer' AND crashes BETWEEN 0 AND 2147483647", COUNT;
    }
    consumer: {
        id: "id BETWEEN 1 AND 9007199254740991", NUMBER;
        name: "typeof(name) = 'text'", TEXT;
        until: "typeof(until) = 'integer'", INTEGER;
        lease: "typeof(lease) = 'integer' AND lease BETWEEN 0 AND 4611686018427387903", "milliseconds, 0 or more";
    }
    subscription: {
        consumer: "typeof(consumer) = 'integer'", INTEGER;
        queue: "typeof(queue) = 'integer'", INTEGER;
    }
    running: {
        consumer: "typeof(consumer) = 'integer'", INTEGER;
        seq: "typeof(seq) = 'integer'", INTEGER;
        retries: "typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647", COUNT;
        crashes: "typeof(crashes) = 'integer' AND crashes BETWEEN 0 AND 2147483647", COUNT;
    }
    dead: {
        at: "typeof(at) = 'integer'", INTEGER;
        retries: "typeof(retries) = 'integer' AND retries BETWEEN 0 AND 2147483647", COUNT;
        reason: "typeof(reason) = 'text'", TEXT;
        traceback: "typeof(traceback) IN ('text', 'null')", MAYBE_TEXT;
    }
    uniq: {
        key: "typeof(key) = 'text'", TEXT;
        id: "typeof(id) = 'text'", TEXT;
        until: "typeof(until) = 'integer'", INTEGER;
        past_settle: "typeof(past_settle) = 'integer' AND past_settle BETWEEN 0 AND 1", "0 or 1";
    }
    revoked: {
        n: "n BETWEEN 1 AND 9007199254740991", NUMBER;
        id: "typeof(id) = 'text'", TEXT;
        until: "typeof(until) = 'integer'", INTEGER;
    }
    result: {
        id: "typeof(id) = 'text'", TEXT;
        until: "typeof(until) = 'integer'", INTEGER;
        state: "typeof(state) = 'text'", TEXT;
        value: "typeof(value) IN ('text', 'null')", "JSON or NULL";
        error: "typeof(error) IN ('text', 'null')", "JSON or NULL";
    }
};

pub(super) fn keys(table: &str) -> &'static [&'static str] {
    KEYS.iter().find(|(name, _)| *name == table).map_or(&[], |(_, keys)| keys)
}

/// The rules of one table.
pub(super) fn of(table: &str) -> impl Iterator<Item = &'static Rule> + '_ {
    RULES.iter().filter(move |rule| rule.table == table)
}

/// True, in SQL, for a row of this table that breaks a rule.
pub(super) fn broken(table: &str) -> String {
    let all: Vec<String> = of(table).map(|rule| format!("({})", rule.holds)).collect();
    format!("NOT ({})", all.join(" AND "))
}
