//! Jobs over real HTTP: uploads, runs against a strict mock server, reading, downloads, restarts, hostile input.

mod attacks;
mod hostile;
mod rebuilds;
mod requests;
mod requests_hostile;
mod runs;
mod support;

/// PDFs are read in a child: this very program, told to run this test alone.
#[test]
fn pdf_child() {
    tidegate_pdf::child::main_if_asked();
}
