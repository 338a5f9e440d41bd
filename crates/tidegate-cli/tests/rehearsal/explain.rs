use std::fmt::Write as _;
use std::time::Duration;

use tidegate_rehearsal::{Latency, Limit, Server};

use crate::support::{Place, text, tidegate};

/// A PDF with so many pages of plain text.
fn pdf(name: &str, pages: usize) -> Vec<u8> {
    let mut objects = vec!["<</Type/Catalog/Pages 2 0 R>>".to_owned()];
    let kids: String = (0..pages).fold(String::new(), |mut kids, page| {
        write!(kids, "{} 0 R ", 4 + 2 * page).unwrap();
        kids
    });
    objects.push(format!("<</Type/Pages/Count {pages}/Kids[{kids}]>>"));
    objects.push("<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>".to_owned());
    for page in 1..=pages {
        let lines = format!(
            "BT /F1 12 Tf 50 700 Td (Page {page} of {name} is about the tides, which turn twice a day.) Tj \
             0 -20 Td (The moon pulls the sea, and the sea follows; the gate opens and closes with it.) Tj ET"
        );
        let content = objects.len() + 2;
        objects.push(format!(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>/Contents {content} 0 R>>"
        ));
        objects.push(format!("<</Length {}>>stream\n{lines}\nendstream", lines.len()));
    }
    let (mut file, mut places) = (b"%PDF-1.4\n".to_vec(), Vec::new());
    for (at, object) in objects.iter().enumerate() {
        places.push(file.len());
        file.extend_from_slice(format!("{} 0 obj{object}endobj\n", at + 1).as_bytes());
    }
    let (start, size) = (file.len(), objects.len() + 1);
    file.extend_from_slice(format!("xref\n0 {size}\n0000000000 65535 f \n").as_bytes());
    for place in places {
        file.extend_from_slice(format!("{place:010} 00000 n \n").as_bytes());
    }
    file.extend_from_slice(format!("trailer<</Size {size}/Root 1 0 R>>\nstartxref\n{start}\n%%EOF\n").as_bytes());
    file
}

#[test]
fn ten_files_of_fifty_pages_are_explained_without_a_refusal() {
    let place = Place::new("explain");
    for file in 0..10 {
        std::fs::write(place.path(&format!("{file}.pdf")), pdf(&format!("file {file}"), 50)).unwrap();
    }
    let minute = Duration::from_secs(2);
    let server = Server::builder()
        .rpm(Limit::new(200).per(minute))
        .tpm(Limit::new(200_000).per(minute))
        .concurrency(200)
        .latency(Latency::Uniform(Duration::from_millis(50), Duration::from_millis(150)))
        .start_in_thread()
        .unwrap();
    let (base, folder, out) = (format!("{}/v1", server.base_url()), place.path(""), place.path("out"));
    let done =
        tidegate(&["explain", &folder, "--out", &out, "--provider", "openai", "--base-url", &base, "--model", "m"])
            .args([
                "--rpm",
                "200",
                "--tpm",
                "200000",
                "--minute",
                "2s",
                "--page-concurrency",
                "50",
                "--file-concurrency",
                "10",
            ])
            .args(["--picture-px", "0", "--progress", "none"])
            .output()
            .unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let stats = server.stats();
    assert_eq!((stats.answered, stats.refused.total(), stats.repeated), (500, 0, 0), "{stats}");
    assert!(stats.in_flight_peak <= 200);
    for limit in &stats.limits {
        assert!(limit.worst_offered <= limit.amount, "{limit:?}");
    }
    assert!(stats.used_share().is_some(), "a limit bound");
}
