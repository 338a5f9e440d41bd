//! A build without the feature `pdf`: what stands in for `explain.rs`, `rebuild.rs`, `serve.rs` and `plan_pdf.rs`. Everything that needs
//! a PDF says what is missing.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::bail;
use tidegate_batch::plan::Part;

use super::Done;

const NO_READER: &str = "this tidegate was built without the PDF reader; build it with the default features";

/// Not in this build: it has no PDF reader
///
/// Hidden from the list of commands. It accepts every argument, so that the error is always about the missing reader.
#[derive(Debug, clap::Args)]
#[command(hide = true, disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(hide = true, allow_hyphen_values = true, trailing_var_arg = true)]
    words: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<Done> {
    drop(args.words);
    bail!(NO_READER)
}

/// The options of plan that count for PDFs alone: there are none
#[derive(Debug, clap::Args)]
pub(super) struct PdfArgs {}

impl PdfArgs {
    pub(super) fn is_auto(&self) -> (bool, bool) {
        (false, false)
    }

    pub(super) fn parts(
        &self,
        documents: &[PathBuf],
        _tokens_per_request: Option<u32>,
        _answer_tokens: Option<u32>,
    ) -> anyhow::Result<(Vec<Part>, usize)> {
        let first = documents.first().map(|path| path.display().to_string()).unwrap_or_default();
        bail!("cannot read {first}: {NO_READER}")
    }
}
