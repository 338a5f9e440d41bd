//! Runs from PDFs to outputs, against a server that does what each test tells it to.

mod again;
mod calls;
mod dropped;
mod full_disk;
mod large;
mod odd_input;
mod outages;
mod pictures;
mod results;
mod runs;
mod secrets;
mod support;

/// PDFs are read in a child: this very program, told to run this test alone.
#[test]
fn pdf_child() {
    tidegate_pdf::child::main_if_asked();
}
