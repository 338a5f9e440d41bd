//! Options from `tidegate.toml` and the environment, as a user meets them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Place(PathBuf);

impl Place {
    /// A directory of its own with this `tidegate.toml`.
    fn with(name: &str, config: &str) -> Place {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("config-{name}"));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("tidegate.toml"), config).unwrap();
        Place(directory)
    }

    /// The same, with this file in the user's configuration directory as well.
    fn with_own(name: &str, config: &str, own: &str) -> Place {
        let place = Place::with(name, config);
        fs::create_dir_all(place.0.join("none/tidegate")).unwrap();
        fs::write(place.0.join("none/tidegate/tidegate.toml"), own).unwrap();
        place
    }

    fn run(&self, words: &[&str], environment: &[(&str, &str)]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(words)
            .current_dir(&self.0)
            .env("XDG_CONFIG_HOME", self.0.join("none"))
            .env("XDG_DATA_HOME", self.0.join("data"))
            .envs(environment.iter().copied())
            .output()
            .unwrap()
    }
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_file_stands_below_the_environment_and_the_command_line() {
    let place = Place::with("order", "[trace]\nformat = \"chrome\"\n");
    assert!(out(&place.run(&["trace", "sleep"], &[])).starts_with("{\"traceEvents\""));
    let text = out(&place.run(&["trace", "sleep"], &[("TIDEGATE_FORMAT", "text")]));
    assert!(text.starts_with("sleep: "), "{text}");
    let page = out(&place.run(&["trace", "sleep", "--format", "html"], &[("TIDEGATE_FORMAT", "text")]));
    assert!(page.starts_with("<!doctype html>"), "{page}");
}

#[test]
fn a_top_level_option_holds_for_the_commands_that_have_it() {
    let place = Place::with("top", "format = \"chrome\"\n");
    assert!(out(&place.run(&["trace", "sleep"], &[])).starts_with("{\"traceEvents\""));
    assert!(place.run(&["completions", "bash"], &[]).status.success());
}

#[test]
fn a_flag_in_the_file_gives_way_to_what_it_contradicts() {
    let place = Place::with("flags", "[trace]\nformat = \"chrome\"\nrelaxed = true\n");
    let listed = place.run(&["trace", "--list"], &[]);
    assert!(listed.status.success(), "{}", err(&listed));
}

#[test]
fn a_misspelt_option_stops_the_run_and_names_the_nearest() {
    let place = Place::with("misspelt", "[trace]\nformt = \"chrome\"\n");
    let output = place.run(&["trace", "sleep"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(err(&output), "tidegate: ./tidegate.toml: there is no option 'trace.formt'; did you mean 'format'?\n");
}

#[test]
fn a_value_that_does_not_fit_says_where_it_came_from() {
    let place = Place::with("value", "[trace]\nformat = \"crome\"\n");
    let output = place.run(&["trace", "sleep"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("invalid value 'crome' for '--format <FORMAT>'"), "{}", err(&output));
    assert!(err(&output).ends_with("some options came from ./tidegate.toml\n"), "{}", err(&output));
}

#[test]
fn a_file_that_is_no_toml_and_one_that_is_missing_are_named() {
    let place = Place::with("broken", "[trace\n");
    let output = place.run(&["trace", "sleep"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err(&output).starts_with("tidegate: ./tidegate.toml is not valid TOML: line 1, column 7: "),
        "{}",
        err(&output)
    );
    fs::write(place.0.join("tidegate.toml"), "rpm = 1\nbase-url = \"http://joe:hunter2@host/v1\n").unwrap();
    let output = place.run(&["trace", "sleep"], &[]);
    assert!(err(&output).contains("line 2") && err(&output).contains("(base-url)"), "{}", err(&output));
    assert!(!err(&output).contains("hunter2"), "{}", err(&output));
    let output = place.run(&["--config", "none.toml", "trace", "sleep"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("none.toml"), "{}", err(&output));
}

/// A folder from elsewhere can carry links and pipes in place of the file.
#[test]
fn only_a_regular_file_of_the_current_directory_is_read() {
    let place = Place::with("irregular", "");
    let config = place.0.join("tidegate.toml");
    let run = || {
        let output = place.run(&["trace", "--list"], &[]);
        assert_eq!(output.status.code(), Some(2), "{}", err(&output));
        err(&output)
    };
    fs::write(place.0.join("private"), "token-4711\n").unwrap();
    for target in ["private", "/dev/zero", "nothing"] {
        let _ = fs::remove_file(&config);
        std::os::unix::fs::symlink(target, &config).unwrap();
        let told = run();
        assert!(told.contains("./tidegate.toml: it is a symbolic link; if you trust it, name it"), "{told}");
        assert!(!told.contains("4711"), "{told}");
    }
    fs::remove_file(&config).unwrap();
    assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
    assert!(run().contains("not a regular file"), "{}", run());
    fs::remove_file(&config).unwrap();
    fs::write(&config, "#".repeat(1024 * 1024 + 1)).unwrap();
    assert!(run().contains("larger than 1024 KiB"), "{}", run());
    // What the user names may be anything, but not endless.
    fs::remove_file(&config).unwrap();
    fs::write(place.0.join("named"), "[trace]\nformat = \"chrome\"\n").unwrap();
    std::os::unix::fs::symlink("named", place.0.join("link")).unwrap();
    let named = place.run(&["--config", "link", "trace", "sleep"], &[]);
    assert!(out(&named).starts_with("{\"traceEvents\""), "{}", err(&named));
    let endless = place.run(&["--config", "/dev/zero", "trace", "sleep"], &[]);
    assert!(err(&endless).contains("larger than 1024 KiB"), "{}", err(&endless));
}

/// What a downloaded folder would like to decide: command, its options, the option in the file.
const HOSTILE: &[(&[&str], &str, &str)] = &[
    (&["batch", "in.jsonl"], "base-url", "\"http://127.0.0.1:9/v1\""),
    (&["batch", "in.jsonl"], "api-key-env", "\"AWS_SECRET_ACCESS_KEY\""),
    (&["batch", "in.jsonl"], "api-key-file", "\"/etc/hostname\""),
    (&["batch", "in.jsonl"], "provider", "\"gemini\""),
    (&["batch", "in.jsonl"], "limits", "\"redis://127.0.0.1:9\""),
    (&["batch", "in.jsonl"], "fresh", "true"),
    (&["batch", "in.jsonl"], "output", "\"/tmp/elsewhere.jsonl\""),
    (&["batch", "in.jsonl"], "output", "\"../elsewhere.jsonl\""),
    (&["batch", "in.jsonl"], "output", "\".bashrc\""),
    (&["batch", "in.jsonl"], "output", "\"link/elsewhere.jsonl\""),
    (&["worker"], "handler", "[\"x=exec:touch pwned\"]"),
    (&["worker", "--handler", "x=exec:cat"], "broker", "\"amqp://127.0.0.1:9\""),
    (&["worker", "--handler", "x=exec:cat"], "cron", "[\"n: * * * * * => x\"]"),
    (&["worker", "--handler", "x=exec:cat"], "metrics", "\"0.0.0.0:0\""),
    (&["batch", "in.jsonl"], "metrics", "\"0.0.0.0:0\""),
    (&["batch", "in.jsonl"], "metrics-token-env", "\"AWS_SECRET_ACCESS_KEY\""),
    (&["enqueue", "x"], "args", "\"@/etc/passwd\""),
    (&["queue", "purge", "q"], "yes", "true"),
];

#[test]
fn a_file_in_the_current_directory_decides_neither_where_things_go_nor_what_runs() {
    for (number, (words, option, value)) in HOSTILE.iter().enumerate() {
        let place = Place::with(&format!("hostile-{number}"), &format!("[{}]\n{option} = {value}\n", words[0]));
        fs::write(place.0.join("in.jsonl"), "").unwrap();
        std::os::unix::fs::symlink("/tmp", place.0.join("link")).unwrap();
        let secrets = [("AWS_SECRET_ACCESS_KEY", "wJalr"), ("OPENAI_API_KEY", "sk-x"), ("GEMINI_API_KEY", "x")];
        let output = place.run(words, &secrets);
        assert_eq!(output.status.code(), Some(2), "{option}: {}", err(&output));
        let told = err(&output);
        assert!(told.starts_with(&format!("tidegate: ./tidegate.toml sets '{option}': ")), "{told}");
        assert!(told.contains("tidegate --config ./tidegate.toml"), "{told}");
        assert!(told.contains("none/tidegate/tidegate.toml"), "the user's own file is named: {told}");
        assert!(!place.0.join("pwned").exists());
    }
}

#[test]
fn the_same_file_counts_whole_once_it_is_named_or_the_users_own() {
    let option = "broker = \"sqlite:named.db\"\n";
    let place = Place::with("named", option);
    let output = place.run(&["--config", "tidegate.toml", "enqueue", "x"], &[]);
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(err(&output), "", "what the user has named is not reported");
    let output = place.run(&["enqueue", "x"], &[("TIDEGATE_CONFIG", "./tidegate.toml")]);
    assert!(output.status.success(), "{}", err(&output));
    let place = Place::with_own("own", "", option);
    let output = place.run(&["enqueue", "x"], &[]);
    assert!(output.status.success() && place.0.join("named.db").exists(), "{}", err(&output));
    // Started in the configuration directory itself.
    let place = Place::with("inside", "");
    fs::create_dir_all(place.0.join("tidegate")).unwrap();
    let place = Place(place.0.join("tidegate"));
    fs::write(place.0.join("tidegate.toml"), option).unwrap();
    let output = place.run(&["enqueue", "x"], &[("XDG_CONFIG_HOME", place.0.parent().unwrap().to_str().unwrap())]);
    assert!(output.status.success() && place.0.join("named.db").exists(), "{}", err(&output));
}

#[test]
fn an_option_that_the_command_does_not_use_is_not_refused() {
    let place = Place::with("unused", "broker = \"amqp://127.0.0.1:9\"\n[worker]\nhandler = [\"x=exec:cat\"]\n");
    let output = place.run(&["plan", "--requests", "5", "--rpm", "5"], &[]);
    assert!(output.status.success(), "{}", err(&output));
    let output = place.run(&["enqueue", "x"], &[("TIDEGATE_BROKER", "sqlite:mine.db")]);
    assert!(output.status.success(), "the environment counts first: {}", err(&output));
}

#[test]
fn what_the_file_in_the_current_directory_has_set_is_reported_in_one_line() {
    let place = Place::with("reported", "rpm = 60\n[plan]\nseed = 5\ntpm = 1000\n");
    let output = place.run(&["plan", "--requests", "5", "--tpm", "90000"], &[]);
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(err(&output), "tidegate: options from ./tidegate.toml: rpm, seed\n");
    let place = Place::with("silent", "[worker]\nretries = 5\n");
    let output = place.run(&["plan", "--requests", "5", "--rpm", "5"], &[]);
    assert_eq!(err(&output), "", "nothing was used");
}

#[test]
fn readers_of_json_get_the_report_as_an_event() {
    let place = Place::with("event", "[batch]\nrpm = 60\n");
    fs::write(place.0.join("in.jsonl"), "").unwrap();
    let output = place.run(&["batch", "in.jsonl", "--progress", "json"], &[("OPENAI_API_KEY", "sk-x")]);
    let told = err(&output);
    let first = told.lines().next().unwrap();
    assert_eq!(first, r#"{"event":"message","text":"options from ./tidegate.toml: rpm"}"#, "{told}");
}

#[test]
fn the_users_own_file_still_counts_below_the_one_in_the_current_directory() {
    let place = Place::with_own("both", "[plan]\nrpm = 1\n", "[plan]\nrpm = 1000\njson = true\n");
    let output = place.run(&["plan", "--requests", "5"], &[]);
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON, as the user's file says");
    assert!(plan["duration_s"].as_f64().unwrap() >= 240.0, "five requests at one per minute: {plan}");
    assert_eq!(err(&output), "tidegate: options from ./tidegate.toml: rpm\n");
}

#[test]
fn a_prompt_in_the_current_directory_is_a_text_and_no_file() {
    let place = Place::with("prompt", "[explain]\nprompt = \"@/etc/passwd\"\n");
    let output = place.run(&["explain", "missing.pdf"], &[]);
    if cfg!(feature = "pdf") {
        assert!(err(&output).contains("not name a file to read"), "{}", err(&output));
    }
}

#[test]
fn an_empty_configuration_home_does_not_make_the_current_directory_the_users_own() {
    let place = Place::with("empty-home", "");
    fs::remove_file(place.0.join("tidegate.toml")).unwrap();
    fs::create_dir_all(place.0.join("tidegate")).unwrap();
    fs::write(place.0.join("tidegate/tidegate.toml"), "broker = \"sqlite:theirs.db\"\n").unwrap();
    for home in ["", "."] {
        let data = place.0.join("data");
        let output = place.run(
            &["enqueue", "x"],
            &[("XDG_CONFIG_HOME", home), ("HOME", ""), ("XDG_DATA_HOME", data.to_str().unwrap())],
        );
        assert!(output.status.success(), "{}", err(&output));
        assert!(!place.0.join("theirs.db").exists());
    }
}
