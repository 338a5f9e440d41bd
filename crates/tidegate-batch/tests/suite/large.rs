//! Large documents: linked parts, pictures beside them, and the page that links the documents of a folder.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tidegate_batch::{ExplainError, Rebuild, find_json, write_indexes};
use tidegate_loop::run;

use crate::support::{Bench, Server, answer, reader, sample, write_pdf};

/// The fewest pages that are split.
const LARGE: usize = 201;

async fn server(says: &'static str) -> Server {
    Server::start(move |_, seen| answer(&format!("# Topic {}\n\nA {says} text.", seen.page()))).await
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .map(|entries| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

/// The values of an attribute that are names of files.
fn values(html: &str, attribute: &str) -> Vec<String> {
    let begin = format!(" {attribute}=\"");
    let values = html.split(&begin).skip(1).filter_map(|rest| rest.split('"').next());
    values.filter(|value| !value.starts_with('#') && !value.contains(':')).map(str::to_owned).collect()
}

/// Reads `STEM.html` and its parts; everything that they refer to is there.
fn parts(out: &Path, stem: &str) -> (String, Vec<String>) {
    let contents = fs::read_to_string(out.join(format!("{stem}.html"))).unwrap();
    let links = values(&contents, "href");
    let parts =
        links.iter().map(|link| fs::read_to_string(out.join(link)).unwrap_or_else(|error| panic!("{link}: {error}")));
    let parts: Vec<String> = parts.collect();
    for (part, link) in parts.iter().zip(&links) {
        for name in values(part, "src").iter().chain(&values(part, "href")) {
            let path = out.join(link).with_file_name(name.split('#').next().unwrap());
            assert!(path.is_file(), "{link} refers to {name}");
        }
    }
    (contents, parts)
}

#[test]
fn a_large_document_is_linked_parts_with_pictures_beside_them_and_a_smaller_one_is_one_file() {
    run(async {
        let bench = Bench::new();
        let inputs = [("large.pdf", LARGE), ("small.pdf", LARGE - 1)];
        let inputs = inputs.map(|(name, pages)| write_pdf(bench.folder.path(), name, pages));
        let server = server("plain").await;
        let mut options = bench.options(&inputs);
        options.html_px = Some(16);
        let explain = bench.explain(options, &server);
        let control = explain.control();
        let report = explain.run().await.unwrap();
        assert!(report.is_complete(), "{report:?}");
        let written: Vec<u64> = control.progress().files.iter().map(|file| file.written).collect();
        assert_eq!(written, [LARGE as u64, LARGE as u64 - 1], "pages are counted while they are written");

        let (contents, parts) = parts(&bench.out(), "large");
        assert_eq!(values(&contents, "href"), ["large-pages/1/pages-1-100.html", "large-pages/1/pages-101-201.html"]);
        assert!(!contents.contains("<img") && contents.contains(">Topic 101<"), "{contents}");
        assert_eq!(
            parts.iter().map(|part| part.matches("<section id=\"page-").count()).collect::<Vec<_>>(),
            [100, 101]
        );
        assert_eq!(parts[1].matches("loading=\"lazy\" src=\"page-").count(), 101);
        for html in parts.iter().chain([&contents]) {
            assert!(html.contains("img-src 'self'; style-src 'sha256-") && !html.contains("data:"), "{html}");
        }
        let set = bench.out().join("large-pages/1");
        assert_eq!(names(&set).len(), LARGE + 2 + 1, "pictures, parts and the file to search in");
        assert!(fs::read_to_string(set.join("search.html")).unwrap().contains("[201,\"Topic 201 A plain text.\"]"));
        let outputs = &report.files[0].outputs;
        assert!(outputs.iter().any(|path| path.ends_with("large-pages")), "{outputs:?}");

        let small = fs::read_to_string(bench.out().join("small.html")).unwrap();
        assert_eq!(small.matches("src=\"data:image/png;base64,").count(), LARGE - 1);
        assert!(!bench.out().join("small-pages").exists());
        let mode = |path: PathBuf| path.metadata().unwrap().mode() & 0o777;
        assert_eq!([set.clone(), set.join("page-1.png"), set.join("search.html")].map(mode), [0o700, 0o600, 0o600]);
    })
    .unwrap();
}

#[test]
fn parts_are_replaced_as_a_whole_and_nothing_is_left_of_the_ones_before() {
    run(async {
        let bench = Bench::new();
        let path = write_pdf(bench.folder.path(), "book.pdf", LARGE);
        let folder = bench.out().join("book-pages");
        let options = |pages: &str| {
            let mut options = bench.options(std::slice::from_ref(&path));
            options.html_px = Some(16);
            options.selection = pages.parse().unwrap();
            options
        };
        let first = server("first").await;
        bench.run(options("1-"), &first).await;

        // Of a run that was killed.
        fs::create_dir(folder.join("7")).unwrap();
        fs::write(folder.join("7/page-1.png"), "half").unwrap();
        let drawn = folder.join("1/page-3.png").metadata().unwrap().ino();
        bench.run(options("1-"), &first).await;
        assert_eq!(names(&folder), [".tidegate-pages", "1"], "what was not finished is removed");
        assert_eq!(folder.join("1/page-3.png").metadata().unwrap().ino(), drawn, "nothing is drawn again");

        // Shared by its user, who keeps a file of their own there.
        let page = bench.out().join("book.html");
        fs::set_permissions(&page, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(folder.join("1/notes.txt"), "mine").unwrap();
        let second = server("second").await;
        let mut fresh = options("1-");
        fresh.fresh = true;
        bench.run(fresh, &second).await;
        let (contents, parts) = parts(&bench.out(), "book");
        assert!(contents.contains("book-pages/2/") && !contents.contains("book-pages/1/"));
        assert!(parts.iter().all(|part| part.contains("A second text") && !part.contains("A first text")));
        assert_eq!(names(&folder.join("1")), ["notes.txt"], "what tidegate did not write stays");
        let mode = |path: PathBuf| path.metadata().unwrap().mode() & 0o777;
        let set = folder.join("2");
        assert_eq!([folder.clone(), set.clone(), set.join("page-1.png")].map(mode), [0o755, 0o755, 0o644]);

        // Without its parts it is written again though the text is the same.
        fs::remove_dir_all(&set).unwrap();
        bench.run(options("1-"), &second).await;
        self::parts(&bench.out(), "book");

        fs::remove_file(folder.join("1/notes.txt")).unwrap();
        bench.run(options("1-9"), &second).await;
        assert!(!folder.exists(), "nine pages need no folder");
        assert!(fs::read_to_string(page).unwrap().contains("data:image/png"));
    })
    .unwrap();
}

#[test]
fn a_folder_that_tidegate_did_not_make_is_left_alone_before_anything_is_sent() {
    run(async {
        let bench = Bench::new();
        let inputs = [("large.pdf", LARGE), ("small.pdf", 2)];
        let inputs = inputs.map(|(name, pages)| write_pdf(bench.folder.path(), name, pages));
        for name in ["large", "small"] {
            fs::create_dir(bench.out().join(format!("{name}-pages"))).unwrap();
            fs::write(bench.out().join(format!("{name}-pages/page-1.png")), "mine").unwrap();
        }
        let server = server("plain").await;
        let report = bench.run(bench.options(&inputs), &server).await;
        let error = report.files[0].error.as_deref().unwrap();
        assert!(error.contains("large-pages cannot be written") && error.contains("tidegate did not make"), "{error}");
        assert_eq!((report.files[1].done, report.totals.requests), (2, 2), "a small document needs none");
        for name in ["large", "small"] {
            let mine = fs::read_to_string(bench.out().join(format!("{name}-pages/page-1.png"))).unwrap();
            assert_eq!(mine, "mine");
        }
    })
    .unwrap();
}

#[test]
fn a_run_has_a_page_that_links_its_documents() {
    run(async {
        let bench = Bench::new();
        let mut inputs =
            vec![write_pdf(bench.folder.path(), "index.pdf", 2), write_pdf(bench.folder.path(), "b & c.pdf", 3)];
        inputs.push(bench.folder.path().join("empty.pdf"));
        fs::write(&inputs[2], "").unwrap();
        let server = server("plain").await;
        let index = bench.out().join("index.html");
        let report = bench.run(bench.options(&inputs[..1]), &server).await;
        assert_eq!(report.index.as_deref(), Some(index.to_str().unwrap()));
        bench.run(bench.options(&inputs[1..]), &server).await;
        let html = fs::read_to_string(&index).unwrap();
        assert!(
            html.contains("href=\"b%20%26%20c.html\" dir=\"auto\">b &amp; c.pdf</a>\n<p>3 of 3 pages explained"),
            "{html}"
        );
        assert!(html.contains(">empty.pdf</span>") && html.contains("is empty (0 bytes)"), "{html}");
        assert!(html.contains("href=\"index-pdf.html\"") && html.contains("href=\"report.json\""), "{html}");
        for link in values(&html, "href") {
            let path = bench.out().join(link.replace("%20", " ").replace("%26", "&"));
            assert!(path.is_file(), "{link}");
        }

        // Made again, the folder has one for all of them; a file of the user's stays.
        let rebuild = || {
            let inputs = find_json(&[bench.out()]).unwrap();
            Rebuild { html_px: None, reader: reader(), ..Rebuild::default() }.run(inputs, |_| ())
        };
        let written = write_indexes(&rebuild().await).await;
        assert!(matches!(&written[..], [Ok((path, 2))] if *path == index), "{written:?}");
        let html = fs::read_to_string(&index).unwrap();
        assert!(
            html.contains("5 of 5 pages explained · 2 files") && html.contains("href=\"index-pdf.html\""),
            "{html}"
        );
        fs::write(&index, "<title>mine</title>").unwrap();
        let written = write_indexes(&rebuild().await).await;
        assert!(written[0].as_ref().unwrap_err().to_string().contains("tidegate did not write"), "{written:?}");
        let error = bench.explain(bench.options(&inputs), &server).run().await.unwrap_err();
        assert!(matches!(&error, ExplainError::Foreign { path, .. } if *path == index), "{error}");
        assert_eq!(fs::read_to_string(&index).unwrap(), "<title>mine</title>");
    })
    .unwrap();
}

#[test]
fn a_page_that_cannot_be_written_at_the_end_costs_no_report() {
    run(async {
        let bench = Bench::new();
        let server = server("plain").await;
        let (index, inputs) = (bench.out().join("index.html"), [write_pdf(bench.folder.path(), "a.pdf", 1)]);
        let explain = bench.explain(bench.options(&inputs), &server).on_event({
            let index = index.clone();
            move |_| fs::write(&index, "<title>mine</title>").unwrap()
        });
        let error = explain.run().await.unwrap_err();
        assert!(error.to_string().ends_with("every result is kept"), "{error}");
        let ExplainError::Report { path, report, .. } = error else { panic!("{error}") };
        assert_eq!((path, report.totals.done, &report.index), (index.clone(), 1, &None));
        assert!(fs::read_to_string(bench.out().join("report.json")).unwrap().contains("\"done\": 1"));
        assert_eq!(fs::read_to_string(&index).unwrap(), "<title>mine</title>");
    })
    .unwrap();
}

/// JSON from elsewhere may be called so, too.
#[test]
fn rebuild_of_a_document_called_index_leaves_the_place_of_the_page_that_links_it() {
    run(async {
        let bench = Bench::new();
        fs::copy(sample("tides.pdf"), bench.out().join("index.pdf")).unwrap();
        fs::write(bench.out().join("index.json"), r#"{"1": "text"}"#).unwrap();
        let inputs = find_json(&[bench.out()]).unwrap();
        let rebuild = Rebuild { html_px: Some(16), reader: reader(), ..Rebuild::default() };
        let done = rebuild.run(inputs, |_| ()).await;
        let outputs = &done[0].outcome.as_ref().unwrap().outputs;
        assert!(outputs.contains(&bench.out().join("index-pdf.html")), "{outputs:?}");
        assert!(!bench.out().join("index.html").exists() && write_indexes(&done).await.is_empty());
    })
    .unwrap();
}
