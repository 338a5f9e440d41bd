//! What reaches the terminal: every command is run with hostile file names, task names, ids, server answers, errors and
//! tracebacks, and neither stream may contain a character that a terminal acts upon or that is invisible.
//!
//! The commands are taken from the program's own help, so a new one without a case fails `every_command_has_a_case`.

mod commands;
mod support;

use std::collections::BTreeSet;
use std::thread;

use commands::{broken_pdf, cases};
use support::{HOSTILE, Place, commands_of_the_program, hidden};

#[test]
fn every_command_has_a_case() {
    let listed: BTreeSet<String> = commands_of_the_program().into_iter().collect();
    let covered: BTreeSet<String> = cases().into_keys().map(str::to_owned).collect();
    assert!(listed.len() >= 17, "the help lists fewer commands than there are: {listed:?}");
    assert_eq!(listed, covered, "left: the program's commands; right: those with a case in commands.rs");
}

#[test]
fn no_command_sends_hostile_input_to_the_terminal() {
    let running = cases().into_iter().map(|(command, case)| {
        thread::spawn(move || {
            let place = Place::new(command);
            case(&place);
            assert!(place.runs() > 0, "the case of `{command}` has run nothing");
            place.faults()
        })
    });
    let running: Vec<_> = running.collect();
    let faults: Vec<String> = running.into_iter().flat_map(|case| case.join().unwrap()).collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Words that make no sense to any command, and a configuration file that makes none.
#[test]
fn a_bad_command_line_is_shown_and_not_sent() {
    let mut faults = Vec::new();
    let mut commands = commands_of_the_program();
    commands.push(String::new());
    for command in &commands {
        let place = Place::new(command);
        let path: Vec<&str> = command.split_whitespace().collect();
        let option = format!("--{HOSTILE}");
        let value = format!("--config={HOSTILE}");
        for words in [vec![option.as_str()], vec![HOSTILE; 9], vec!["--help", HOSTILE], vec![value.as_str()]] {
            let at = if words[0].starts_with("--config") { 0 } else { path.len() };
            let mut line = path.clone();
            line.splice(at..at, words);
            place.run(&line);
        }
        for (at, text) in [format!("\"{}\" = 1\n", escaped()), format!("[{HOSTILE}\n")].iter().enumerate() {
            let file = format!("bad{at}.toml");
            place.write(&file, text);
            place.run(&[&["--config", file.as_str()], &path[..]].concat());
        }
        faults.extend(place.faults());
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// `HOSTILE` in a string of TOML or JSON.
fn escaped() -> String {
    HOSTILE.chars().map(|c| if hidden(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() }).collect()
}

/// On a terminal the display has escape sequences of its own. Those of a name must not be among them.
#[test]
fn a_hostile_name_cannot_draw_on_a_terminal() {
    let place = Place::new("explain");
    let name = format!("{HOSTILE}.pdf");
    place.write(&name, broken_pdf());
    place.sample("tides.pdf", &format!("{HOSTILE}2.pdf"));
    let text = place.in_terminal(&["explain", ".", "--out", "out", "--picture-px", "0"]);
    assert!(text.contains("\x1b[J"), "nothing was drawn: {text:?}");
    assert!(text.contains("evil\\x1b]0;pwned\\x07"), "the name is not shown: {text:?}");
    assert!(!text.contains("\x1b]"), "a title: {text:?}");
    assert!(!text.contains("\x1b[2J"), "a cleared screen: {text:?}");
    assert!(!text.contains(['\u{9b}', '\u{202e}', '\u{2066}', '\u{200b}', '\x07']), "{text:?}");
}
