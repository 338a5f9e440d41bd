//! Prints what can be read from PDFs: `pdf_pages [--picture PX DIRECTORY] [--summary] FILE…`
//!
//! With `--picture` each page is also written as a PNG; with `--summary` there is one line per file instead of the text.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use tidegate_pdf::{Reader, Want};

struct Args {
    picture: Option<(u32, PathBuf)>,
    summary: bool,
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    tidegate_pdf::child::main_if_asked();
    let args = match parse() {
        Ok(args) => args,
        Err(error) => {
            eprintln!("pdf_pages: {error}");
            return ExitCode::from(2);
        }
    };
    let failed = tidegate_loop::run(async move {
        let mut failed = false;
        for file in &args.files {
            if let Err(error) = print(file, &args).await {
                failed = true;
                println!("{error}");
            }
        }
        failed
    });
    match failed {
        Ok(false) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn parse() -> Result<Args, Box<dyn Error>> {
    let mut args = Args { picture: None, summary: false, files: Vec::new() };
    let mut given = std::env::args_os().skip(1);
    while let Some(arg) = given.next() {
        match arg.to_str() {
            Some("--summary") => args.summary = true,
            Some("--picture") => {
                let px = given.next().and_then(|px| px.to_str()?.parse().ok()).ok_or("--picture PX DIRECTORY")?;
                args.picture = Some((px, given.next().ok_or("--picture PX DIRECTORY")?.into()));
            }
            _ => args.files.push(arg.into()),
        }
    }
    Ok(args)
}

async fn print(file: &Path, args: &Args) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let document = Reader::new().open(file).await?;
    let (mut first, mut chars, mut good) = (None, 0, 0);
    for warning in document.warnings() {
        println!("{}: {warning}", file.display());
    }
    for number in 1..=document.page_count() {
        let want = args.picture.as_ref().map_or(Want::text(), |(px, _)| Want::text().and_picture(*px));
        let page = match document.page(number, want).await {
            Ok(page) => page,
            Err(error) => {
                println!("{error}");
                continue;
            }
        };
        first.get_or_insert_with(|| started.elapsed());
        let text = page.text.ok_or("no text came, though it was wanted")?;
        chars += text.text.chars().count();
        good += usize::from(text.quality().is_good());
        if !args.summary {
            println!("--- page {number}: {}\n{}", text.quality(), text.text);
            page.warnings.iter().for_each(|warning| println!("page {number}: {warning}"));
        }
        if let (Some(picture), Some((_, directory))) = (page.picture, &args.picture) {
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            fs::write(directory.join(format!("{name}-{number}.png")), picture.bytes)?;
        }
    }
    if args.summary {
        let (pages, stats) = (document.page_count(), document.stats());
        println!(
            "{}: {pages} pages, {good} good, {} failed, {chars} characters, first page after {:.0?}, all after {:.0?}, \
             {} MiB",
            file.display(),
            stats.failed,
            first.unwrap_or_default(),
            started.elapsed(),
            stats.memory_peak_bytes >> 20,
        );
    }
    Ok(())
}
