//! The least that any client could do: no runtime, no limits, no parser. Requests are written, and whatever comes back is an
//! answer if it begins as one. What this takes is the server's and the machine's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// Larger than any answer, which comes in one piece.
const BUFFER_BYTES: usize = 16 * 1024;

pub(super) struct Client {
    streams: Vec<TcpStream>,
    epoll: OwnedFd,
}

impl Client {
    pub(super) fn connect(server: SocketAddr, connections: u64) -> std::io::Result<Client> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let connect = |at| {
            let stream = TcpStream::connect(server)?;
            stream.set_nodelay(true)?;
            epoll::add(&epoll, &stream, EventData::new_u64(at), EventFlags::IN)?;
            Ok(stream)
        };
        let streams = (0..connections).map(connect).collect::<std::io::Result<_>>()?;
        Ok(Client { streams, epoll })
    }

    /// Asks for `pages`, one at a time on every connection; how long that took.
    pub(super) fn ask(&mut self, pages: u64) -> std::io::Result<Duration> {
        let begun = Instant::now();
        let mut asked = 0;
        for stream in self.streams.iter_mut().take(usize::try_from(pages).unwrap_or(usize::MAX)) {
            write(stream, asked)?;
            asked += 1;
        }
        let mut answered = 0;
        let mut events: Vec<Event> = Vec::with_capacity(self.streams.len());
        let mut buffer = vec![0; BUFFER_BYTES];
        while answered < pages {
            events.clear();
            epoll::wait(&self.epoll, spare_capacity(&mut events), None)?;
            for event in &events {
                let data = event.data;
                let stream = &mut self.streams[usize::try_from(data.u64()).expect("one of ours")];
                let count = stream.read(&mut buffer)?;
                if !buffer[..count].starts_with(b"HTTP/1.1 200 ") {
                    return Err(std::io::Error::other("the server did not answer"));
                }
                answered += 1;
                if asked < pages {
                    write(stream, asked)?;
                    asked += 1;
                }
            }
        }
        Ok(begun.elapsed())
    }
}

fn write(stream: &mut TcpStream, page: u64) -> std::io::Result<()> {
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"Page {page}: what does it say?"}}]}}"#);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length:";
    stream.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes())
}
