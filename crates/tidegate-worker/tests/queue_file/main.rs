//! One file, many processes: killed at any moment, out of disk, out of luck.
//!
//! A program of its own: it starts itself as the producers and workers that are killed. With `TIDEGATE_SOAK` many more rounds.

mod children;
mod kill;
mod trouble;

use std::path::Path;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--child", role, file, name] => children::run(role, Path::new(file), name),
        _ => {
            let only = arguments.iter().find(|argument| !argument.starts_with('-'));
            let cases: &[(&str, fn())] = &[
                ("four_processes_share_one_file_and_none_is_left_out", kill::four_processes_share_one_file),
                ("killed_at_any_moment_no_task_is_lost", kill::killed_at_any_moment_no_task_is_lost),
                ("a_full_disk_refuses_and_loses_nothing", trouble::a_full_disk_refuses_and_loses_nothing),
                ("a_locked_file_is_waited_for_then_named", trouble::a_locked_file_is_waited_for_then_named),
                ("a_deleted_file_ends_everything_with_its_name", trouble::a_deleted_file_ends_everything),
                ("a_directory_that_cannot_be_written_is_named", trouble::a_directory_that_cannot_be_written_is_named),
                ("files_that_are_none_of_ours_are_refused", trouble::files_that_are_none_of_ours_are_refused),
                ("what_another_language_writes_is_run", trouble::what_another_language_writes_is_run),
            ];
            for (name, case) in cases.iter().filter(|(name, _)| only.is_none_or(|only| name.contains(only.as_str()))) {
                case();
                println!("queue_file: {name} ... ok");
            }
        }
    }
}
