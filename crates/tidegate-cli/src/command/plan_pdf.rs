//! The PDFs of a plan: what each page would cost.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use tidegate_batch::plan::{Part, Requests, Tokens};
use tidegate_batch::{Size, find_pdfs, tokens_of_text};
use tidegate_pdf::{Reader, Want};

use super::plan::{ANSWER_TOKENS, part};
use super::run_on_loop;
use crate::terminal;

/// What a prompt and its framing cost beside the page.
const PROMPT_TOKENS: u64 = 120;

/// What a page costs that goes as a picture.
const PICTURE_TOKENS: u64 = 1_600;

/// The options that count for PDFs alone
#[derive(Debug, clap::Args)]
pub(crate) struct PdfArgs {
    /// How many pages before and after are sent along as context
    #[arg(long, value_name = "N", default_value_t = 1)]
    context_pages: u32,

    /// Pages of one file in flight at once; auto: by the file's size and the stated limits, as explain does
    #[arg(long, value_name = "N|auto", default_value = "auto", help_heading = "Limits")]
    page_concurrency: Count,

    /// Of these, pages sent as pictures; those sent as text do not wait for them [default: no separate limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    picture_concurrency: Option<u32>,

    /// Files in flight at once; auto: by the files' size and the stated limits, as explain does
    #[arg(long, value_name = "N|auto", default_value = "auto", help_heading = "Limits")]
    file_concurrency: Count,
}

/// A number, or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count(Option<u32>);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Count, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Count(None)),
            (_, Ok(number)) if number > 0 => Ok(Count(Some(number))),
            _ => Err("a number above zero, or auto".into()),
        }
    }
}

impl PdfArgs {
    /// Returns whether the concurrency of pages and of files was left to tidegate.
    pub(super) fn is_auto(&self) -> (bool, bool) {
        (self.page_concurrency.0.is_none(), self.file_concurrency.0.is_none())
    }

    /// What is to be asked about `documents`, file by file, and how many files at once. A file that cannot be read is left out.
    pub(super) fn parts(
        &self,
        documents: &[PathBuf],
        tokens_per_request: Option<u32>,
        answer_tokens: Option<u32>,
    ) -> anyhow::Result<(Vec<Part>, usize)> {
        let (context, answer) = (self.context_pages, answer_tokens.unwrap_or(ANSWER_TOKENS));
        let paths: Vec<PathBuf> = find_pdfs(documents)?.into_iter().map(|input| input.path).collect();
        let read = run_on_loop(async move {
            let mut read = Vec::new();
            for path in paths {
                let costs = pages(&path, context, tokens_per_request, answer).await;
                read.push((path, costs));
            }
            read
        })?;
        let (mut parts, mut broken, mut largest) = (Vec::new(), Vec::new(), Size::Small);
        for (path, costs) in read {
            match costs {
                Ok(costs) => {
                    let count = costs.text.len() + costs.pictures.len();
                    let size = Size::of(u32::try_from(count).unwrap_or(u32::MAX));
                    if size.file_concurrency() < largest.file_concurrency() {
                        largest = size;
                    }
                    let cap = self.page_concurrency.0.unwrap_or(size.page_concurrency());
                    let Costs { mut text, pictures } = costs;
                    let pictures = match self.picture_concurrency {
                        Some(most) => Some((Requests::Each(pictures), u64::from(most))),
                        None => {
                            text.extend(pictures);
                            None
                        }
                    };
                    parts.push(Part { pictures, ..part(&path, Requests::Each(text), u64::from(cap)) });
                }
                Err(error) => broken.push(error),
            }
        }
        for error in &broken {
            terminal::say(format!("tidegate: {error:#}; left out"));
        }
        let at_once = self.file_concurrency.0.unwrap_or(largest.file_concurrency());
        Ok((parts, at_once as usize))
    }
}

/// What each page costs.
#[derive(Default)]
struct Costs {
    text: Vec<Tokens>,
    /// Of pages that are sent as pictures.
    pictures: Vec<Tokens>,
}

/// What each page of a PDF costs, its neighbours included.
async fn pages(path: &Path, context: u32, alike: Option<u32>, answer: u32) -> anyhow::Result<Costs> {
    let document = Reader::new().open(path).await?;
    let count = document.page_count();
    if let Some(input) = alike {
        return Ok(Costs { text: vec![Tokens { input, output: answer }; count as usize], ..Costs::default() });
    }
    let mut own = Vec::with_capacity(count as usize);
    for number in 1..=count {
        let page = document.page(number, Want::text()).await;
        let text = page.ok().and_then(|page| page.text).filter(|text| text.quality().is_good());
        own.push(text.map(|text| tokens_of_text(&text.text)));
    }
    let around = context as usize;
    let mut costs = Costs::default();
    for (at, text) in own.iter().enumerate() {
        let neighbours = &own[at.saturating_sub(around)..own.len().min(at + around + 1)];
        let input = PROMPT_TOKENS + neighbours.iter().map(|text| text.unwrap_or(PICTURE_TOKENS)).sum::<u64>();
        let tokens = Tokens { input: u32::try_from(input).unwrap_or(u32::MAX), output: answer };
        match text {
            Some(_) => costs.text.push(tokens),
            None => costs.pictures.push(tokens),
        }
    }
    Ok(costs)
}
