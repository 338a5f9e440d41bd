//! `tidegate rebuild`: outputs again from JSON, without a call.

use std::env;
use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::json;
use tidegate_batch::{Rebuild, Rebuilt, find_json, write_indexes};
use tidegate_pdf::Reader;
use tidegate_secret::Secret;

use super::explain::open_index;
use super::{Done, pages, run_on_loop};
use crate::terminal;

/// Make Markdown and HTML again from JSON; sends nothing
///
/// Takes the JSON that explain wrote, and pairs of a PDF and JSON that came from elsewhere: [{"page": 1, "explanation": "…"}]
/// or {"1": "…"}. The PDF is looked for where the JSON says, and beside it under the same name; without one there are no
/// pictures. It must be below the JSON's folder, the current one or that of --pdf. Up to 20 files at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// JSON files, or folders with them
    #[arg(value_name = "JSON|DIR", required = true)]
    paths: Vec<PathBuf>,

    /// Where outputs go; beside each JSON unless given
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// A folder to look for the PDFs in as well
    #[arg(long, value_name = "DIR")]
    pdf: Option<PathBuf>,

    /// The longest side of the pages' pictures in the HTML, in pixels; 0: no pictures
    #[arg(long, value_name = "PX", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=4096))]
    picture_px: u32,

    /// The password of PDFs that need one
    #[arg(long, value_name = "TEXT", hide_env_values = true)]
    pdf_password: Option<Secret>,

    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
}

/// Returns the current folder, below which JSON may name PDFs. In the home directory or the root that would be any file.
fn current_folder() -> Option<PathBuf> {
    let current = env::current_dir().ok()?;
    let home = env::var_os("HOME").map(PathBuf::from).and_then(|home| home.canonicalize().ok());
    (current.parent().is_some() && Some(&current) != home.as_ref()).then_some(current)
}

pub(crate) fn run(args: Args) -> anyhow::Result<Done> {
    let inputs = find_json(&args.paths)?;
    if let Some(out) = &args.out {
        tidegate_files::create_directories(out).with_context(|| format!("cannot make the folder {}", out.display()))?;
    }
    let mut reader = Reader::new();
    if let Some(password) = args.pdf_password {
        reader = reader.password(password);
    }
    let html_px = Some(args.picture_px).filter(|&px| px > 0);
    let rebuild =
        Rebuild { out: args.out, pdf_folder: args.pdf, trees: current_folder().into_iter().collect(), html_px, reader };
    let json = args.json;
    let on_done = move |rebuilt: &Rebuilt| {
        let name = rebuilt.json.display();
        match &rebuilt.outcome {
            _ if json => {}
            Ok(files) => {
                let page = files.outputs.iter().find(|path| path.extension().is_some_and(|ending| ending == "html"));
                let page = page.map(|path| path.display().to_string()).unwrap_or_default();
                let note = files.pdf.as_ref().err().map(|why| format!(" (no pictures: {why})")).unwrap_or_default();
                terminal::say(format!("{name}: {}, {page}{note}", pages(files.pages)));
            }
            Err(error) => terminal::say(format!("{name}: {error}")),
        }
    };
    let (done, indexes) = run_on_loop(async move {
        let done = rebuild.run(inputs, on_done).await;
        let indexes = write_indexes(&done).await;
        (done, indexes)
    })?;
    let failed = done.iter().filter(|rebuilt| rebuilt.outcome.is_err()).count();
    if json {
        let lines: Vec<_> = done
            .iter()
            .map(|rebuilt| match &rebuilt.outcome {
                Ok(files) => json!({
                    "json": rebuilt.json, "outputs": files.outputs, "pages": files.pages,
                    "pdf": files.pdf.as_ref().ok(), "note": files.pdf.as_ref().err(),
                }),
                Err(error) => json!({"json": rebuilt.json, "error": error.to_string()}),
            })
            .collect();
        terminal::print_json(&format!("{}\n", serde_json::to_string_pretty(&lines)?))?;
    } else {
        terminal::print(&format!("{} of {} files made again\n", done.len() - failed, done.len()))?;
    }
    indexes
        .iter()
        .filter_map(|index| index.as_ref().err())
        .for_each(|error| terminal::say(format!("tidegate: {error}")));
    let is_complete = failed == 0 && indexes.iter().all(Result::is_ok);
    if let Some((index, documents)) = indexes.iter().flatten().next().filter(|_| !json) {
        terminal::say(open_index(&index.display().to_string(), *documents));
    }
    Ok(if is_complete { Done::All } else { Done::SomeFailed })
}
