//! Texts and files that nobody would write: nothing panics, nothing breaks out.

use tidegate_batch::{Dialect, Explanations, Prompt, Question, Selection, Variables, local, to_markdown};

/// Pieces that have a meaning somewhere.
const PIECES: &[&str] = &[
    "a",
    "The tide rises. ",
    "e.g. ",
    "Dr. ",
    "\n",
    "\n\n",
    "  ",
    "潮汐",
    "。",
    "！",
    "「",
    "」",
    "が",
    "\u{ad}",
    "-\n",
    "•",
    "…",
    "\0",
    "\u{feff}",
    "\u{202e}",
    "\u{10ffff}",
    "é",
    "e\u{301}",
    "😀",
    "ﬁ",
    "ß",
    "İ",
    "{",
    "}",
    "{page}",
    "{{",
    "<script>",
    "</div>",
    "](javascript:x)",
    "![",
    "```",
    "# ",
    "> ",
    "|",
    "&amp;",
    "\"",
    "'",
    "\\",
    "0",
    "1-",
    ",",
    "-",
    "99999999999999999999",
    "[",
    "]",
    ":",
    "null",
    "\"page\"",
    "\"explanation\"",
    "\"choices\"",
    "\"message\"",
    "\"content\"",
    "1e999",
];

fn random_text(random: &mut fastrand::Rng, pieces: usize) -> String {
    (0..random.usize(0..=pieces)).map(|_| PIECES[random.usize(0..PIECES.len())]).collect()
}

fn rounds() -> u64 {
    if std::env::var_os("TIDEGATE_SOAK").is_some() { 10_000 } else { 500 }
}

#[test]
fn no_text_panics_anywhere() {
    for seed in tidegate_seeds::seeds(rounds()) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (text, other) = (random_text(&mut random, 60), random_text(&mut random, 20));
        let context = vec![tidegate_batch::ContextPage { page: 1, text: other.clone() }];
        let question = Question { page: 2, pages: 2, text: text.clone(), context, ..Question::default() };
        let said = local::explain(&question);
        assert!(!said.trim().is_empty(), "seed {seed}");
        assert_eq!(said, local::explain(&question), "seed {seed}");
        if let Ok(prompt) = Prompt::parse(&other) {
            let _ = prompt.fill(&Variables { file: &text, title: &text, page: 1, pages: 1, language: &text });
        }
        if let Ok(selection) = other.parse::<Selection>() {
            assert!(selection.of(10).iter().all(|page| (1..=10).contains(page)), "seed {seed}: {other:?}");
        }
        for dialect in [Dialect::OpenAi, Dialect::Gemini, Dialect::Anthropic] {
            let _ = dialect.answer(other.as_bytes());
        }
        if let Ok(read) = Explanations::read(other.as_bytes()) {
            let _ = to_markdown(&read);
        }
    }
}

#[test]
fn json_with_a_few_bytes_changed_is_read_or_refused() {
    let whole = br#"{"schema":"tidegate.explanations/1","file":"a.pdf","pages":2,"explanations":[{"page":1,"status":"done",
        "explanation":"One.","usage":{"input_tokens":3,"output_tokens":4}},{"page":2,"status":"failed","error":{"code":"x","reason":"y"}}]}"#;
    let pairs = br#"{"pages":[{"page_number":0,"content":"a"},[2,"b"],"c",{"index":7,"text":"d"}]}"#;
    for seed in tidegate_seeds::seeds(4 * rounds()) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = if seed % 2 == 0 { whole.to_vec() } else { pairs.to_vec() };
        for _ in 0..random.usize(1..5) {
            let at = random.usize(0..bytes.len());
            match random.u8(0..3) {
                0 => bytes[at] = random.u8(..),
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, *random.choice(br#"{}[]",:0-"#).unwrap()),
            }
        }
        if let Ok(read) = Explanations::read(&bytes) {
            let _ = to_markdown(&read);
            assert!(Explanations::read(read.to_json().as_bytes()).is_ok(), "seed {seed}");
        }
    }
}
