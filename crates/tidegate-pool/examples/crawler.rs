//! A crawler with a bounded number of requests in flight, against a small site that it serves itself.
//!
//! `cargo run -p tidegate-pool --example crawler [pages [requests at once]]`
//!
//! The site is a tree of pages, served by threads that count how many requests they see at once. The crawler follows
//! links as pages arrive: it submits what is new, and the pool holds it back. A request is blocking here, so each runs
//! on a thread of its own and wakes its task when it is done; the pool bounds those threads as well.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use tidegate_pool::Pool;
use tidegate_sync::Queue;

/// A tree of pages: page n links to 3n + 1, 3n + 2 and 3n + 3, and back to the root.
struct Site {
    address: SocketAddr,
    at_once: AtomicUsize,
    at_once_max: AtomicUsize,
    served: AtomicUsize,
}

impl Site {
    /// Serves `pages` pages on a port of this machine for as long as the process lives.
    fn serve(pages: usize) -> io::Result<Arc<Site>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let site = Arc::new(Site {
            address: listener.local_addr()?,
            at_once: AtomicUsize::new(0),
            at_once_max: AtomicUsize::new(0),
            served: AtomicUsize::new(0),
        });
        let serving = Arc::clone(&site);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let site = Arc::clone(&serving);
                thread::spawn(move || site.answer(client, pages));
            }
        });
        Ok(site)
    }

    fn answer(&self, client: TcpStream, pages: usize) -> io::Result<()> {
        let mut lines = BufReader::new(&client).lines();
        let request = lines.next().transpose()?.unwrap_or_default();
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        self.at_once_max.fetch_max(self.at_once.fetch_add(1, SeqCst) + 1, SeqCst);
        let page = request.split_whitespace().nth(1).and_then(|path| path.strip_prefix("/page/")?.parse().ok());
        let (status, body) = match page {
            Some(page) if page < pages => ("200 OK", links(page, pages)),
            _ => ("404 Not Found", String::new()),
        };
        self.served.fetch_add(1, SeqCst);
        self.at_once.fetch_sub(1, SeqCst);
        let length = body.len();
        write!(&client, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
    }
}

fn links(page: usize, pages: usize) -> String {
    let children = (3 * page + 1..=3 * page + 3).filter(|&child| child < pages);
    children.chain([0]).map(|page| format!("<a href=\"/page/{page}\">{page}</a>\n")).collect()
}

/// The links on a page.
fn fetch(site: SocketAddr, path: &str) -> io::Result<Vec<String>> {
    let mut stream = TcpStream::connect(site)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if !answer.starts_with("HTTP/1.1 200") {
        return Err(io::Error::other(format!("{path}: {}", answer.lines().next().unwrap_or("no answer"))));
    }
    Ok(answer.split("href=\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect())
}

/// Runs something blocking on a thread of its own.
async fn in_thread<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    let result = Arc::new(Queue::bounded(1));
    let sender = Arc::clone(&result);
    thread::spawn(move || drop(sender.try_push(job())));
    result.recv().await.expect("the queue is open")
}

struct Crawled {
    pages: usize,
    broken: usize,
    /// The most tasks that ran at once.
    peak: usize,
}

async fn crawl(site: SocketAddr, at_once: usize) -> Crawled {
    let pool = Pool::new(at_once);
    // What pages link to. Unbounded: it holds addresses, not requests.
    let found = Arc::new(Queue::unbounded());
    let mut seen = HashSet::new();
    let (mut awaited, mut pages, mut broken) = (0, 0, 0);
    let mut fresh = vec!["/page/0".to_owned()];
    loop {
        for path in fresh.drain(..).filter(|path| seen.insert(path.clone())) {
            let found = Arc::clone(&found);
            let task = async move {
                let links = in_thread(move || fetch(site, &path)).await;
                drop(found.try_push(links));
            };
            // With `at_once` requests in flight, the crawler waits here and follows no further links.
            pool.submit(task).await.expect("the pool is open").detach();
            awaited += 1;
        }
        if awaited == 0 {
            break;
        }
        for links in found.recv_all().await.expect("the queue is open") {
            awaited -= 1;
            match links {
                Ok(links) => {
                    pages += 1;
                    fresh.extend(links);
                }
                Err(error) => {
                    broken += 1;
                    eprintln!("{error}");
                }
            }
        }
    }
    pool.close().await;
    Crawled { pages, broken, peak: pool.stats().peak }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse());
    let pages = arguments.next().transpose()?.unwrap_or(200);
    let at_once = arguments.next().transpose()?.unwrap_or(10);
    run(pages, at_once)
}

pub(crate) fn run(pages: usize, at_once: usize) -> Result<(), Box<dyn std::error::Error>> {
    let site = Site::serve(pages)?;
    let address = site.address;
    let crawled = tidegate_loop::run(async move { crawl(address, at_once).await })?;
    println!(
        "{} pages, {} broken links; at most {} requests at once, the site saw {}",
        crawled.pages,
        crawled.broken,
        crawled.peak,
        site.at_once_max.load(SeqCst)
    );
    assert_eq!((crawled.pages, crawled.broken), (pages, 0));
    assert_eq!(site.served.load(SeqCst), pages, "each page once");
    assert!(site.at_once_max.load(SeqCst) <= at_once && crawled.peak <= at_once);
    Ok(())
}
