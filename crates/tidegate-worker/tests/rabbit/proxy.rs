//! A way to the broker that can be cut, or go silent.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use tidegate_loop::net::{TcpListener, TcpStream};
use tidegate_loop::{Task, spawn};
use tidegate_sync::Event;

pub(crate) struct Proxy {
    pub(crate) host: String,
    ways: Rc<Ways>,
    accepting: Task,
}

struct Ways {
    target: String,
    silent: Cell<bool>,
    /// What has passed last before it goes silent.
    mark: RefCell<Option<Vec<u8>>>,
    /// What passes last to the broker, while its answers come back.
    last: RefCell<Option<Vec<u8>>>,
    /// What comes from the broker under one name is passed on under another one of the same length.
    renamed: RefCell<Option<(Vec<u8>, Vec<u8>)>>,
    /// Requests are held back; how many times something was.
    holding: Cell<bool>,
    held: Cell<u32>,
    changed: Event,
    open: RefCell<Vec<Task>>,
}

impl Proxy {
    pub(crate) async fn to(target: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let ways = Rc::new(Ways {
            target: target.to_owned(),
            silent: Cell::new(false),
            mark: RefCell::default(),
            last: RefCell::default(),
            renamed: RefCell::default(),
            holding: Cell::new(false),
            held: Cell::new(0),
            changed: Event::new(),
            open: RefCell::default(),
        });
        let accepting = spawn(accept(listener, ways.clone())).task();
        Proxy { host, ways, accepting }
    }

    /// Ends every connection without a word; new ones are let through.
    pub(crate) fn cut(&self) {
        self.ways.open.borrow_mut().drain(..).for_each(|way| _ = way.cancel());
    }

    /// Nothing passes any more, and nothing ends; new connections are taken, and hear nothing.
    pub(crate) fn silence(&self, silent: bool) {
        self.ways.silent.set(silent);
        self.ways.changed.notify_all();
    }

    /// Goes silent as soon as this has passed.
    pub(crate) fn silence_after(&self, mark: &str) {
        *self.ways.mark.borrow_mut() = Some(mark.as_bytes().to_vec());
    }

    /// Holds all requests back as soon as this has passed. Answers come back.
    pub(crate) fn hold_after(&self, mark: &str) {
        *self.ways.last.borrow_mut() = Some(mark.as_bytes().to_vec());
    }

    /// Has the broker call something by another name, of the same length.
    pub(crate) fn rename(&self, from: &str, to: &str) {
        assert_eq!(from.len(), to.len());
        *self.ways.renamed.borrow_mut() = Some((from.as_bytes().to_vec(), to.as_bytes().to_vec()));
    }

    /// A request is held back.
    pub(crate) async fn holds_some(&self) {
        while self.ways.held.get() == 0 {
            self.ways.changed.wait().await;
        }
    }

    /// Lets through what was held back.
    pub(crate) fn release(&self) {
        self.ways.holding.set(false);
        self.ways.changed.notify_all();
    }

    pub(crate) async fn is_silent(&self) {
        while !self.ways.silent.get() {
            self.ways.changed.wait().await;
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.cancel();
        self.cut();
    }
}

async fn accept(listener: TcpListener, ways: Rc<Ways>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let way = spawn(pass(client, ways.clone())).task();
        ways.open.borrow_mut().push(way);
    }
}

async fn pass(client: TcpStream, ways: Rc<Ways>) {
    // A broker that is away hangs up, seen from here.
    let Ok(broker) = TcpStream::connect(ways.target.as_str()).await else { return };
    let mut there = pin!(copy(&client, &broker, &ways, true));
    let mut back = pin!(copy(&broker, &client, &ways, false));
    poll_fn(|cx| match (there.as_mut().poll(cx), back.as_mut().poll(cx)) {
        (Poll::Pending, Poll::Pending) => Poll::Pending,
        _ => Poll::Ready(()),
    })
    .await;
}

async fn copy(from: &TcpStream, to: &TcpStream, ways: &Ways, requests: bool) {
    let mut buffer = vec![0; 16 << 10];
    let passes = |mark: &RefCell<Option<Vec<u8>>>, bytes: &[u8]| {
        mark.borrow_mut().take_if(|mark| bytes.windows(mark.len()).any(|part| part == mark)).is_some()
    };
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if requests && ways.holding.get() {
            ways.held.set(ways.held.get() + 1);
            ways.changed.notify_all();
        }
        while ways.silent.get() || (requests && ways.holding.get()) {
            ways.changed.wait().await;
        }
        if let Some((from, to)) = ways.renamed.borrow().as_ref().filter(|_| !requests) {
            for at in 0..(count + 1).saturating_sub(from.len()) {
                if buffer[at..].starts_with(from) {
                    buffer[at..at + to.len()].copy_from_slice(to);
                }
            }
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
        let bytes = &buffer[..count];
        ways.silent.set(ways.silent.get() || passes(&ways.mark, bytes));
        ways.holding.set(ways.holding.get() || (requests && passes(&ways.last, bytes)));
        ways.changed.notify_all();
    }
}
