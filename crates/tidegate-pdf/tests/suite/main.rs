//! Documents that are well, documents that are not, and documents that are made to do harm.

mod confined;
mod evil;
mod fonts;
mod fuzz;
mod life;
mod made;
mod refused;
mod samples;
mod support;

/// Where the children of these tests begin: a test binary has no `main` of its own.
#[test]
fn pdf_child() {
    tidegate_pdf::child::main_if_asked();
}
