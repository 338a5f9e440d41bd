//! `tidegate completions`: what a shell needs to complete tidegate's commands.

use clap_complete::Shell;

use crate::terminal;

/// Print a completion script for your shell
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Where it goes:\n  bash   tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate\n  \
                  zsh    tidegate completions zsh > ~/.zfunc/_tidegate    (a folder in your fpath)\n  \
                  fish   tidegate completions fish > ~/.config/fish/completions/tidegate.fish"
)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::config::command(), "tidegate", &mut script);
    terminal::print(&String::from_utf8(script)?)
}
