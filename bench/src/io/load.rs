//! The load: one thread, no runtime, the same for every server. Every connection has one message under way; what has
//! come back is collected first and answered then, so that a server with many connections sees many at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::echo::Cell;

/// How long a batch goes on.
#[derive(Clone, Copy)]
pub(super) enum Until {
    Passed(Duration),
    /// So many messages on every connection.
    Each(u32),
}

/// A server that is silent for so long is given up.
const SILENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
/// Connections send different stretches of one pattern, so that a mix-up shows.
const STRETCHES: usize = 61;

pub(super) struct Load {
    clients: Vec<Client>,
    epoll: OwnedFd,
    pattern: Vec<u8>,
    bytes: usize,
}

struct Client {
    stream: TcpStream,
    /// Bytes of the current reply that have come.
    received: usize,
    /// Messages sent in this batch.
    sent: u32,
}

impl Load {
    pub(super) fn connect(port: u16, cell: Cell) -> Result<Load, String> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| error.to_string())?;
        let client = |at: usize| {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(&epoll, &stream, EventData::new_u64(at as u64), EventFlags::IN)?;
            Ok(Client { stream, received: 0, sent: 0 })
        };
        let clients: std::io::Result<Vec<Client>> = (0..cell.connections).map(client).collect();
        let clients = clients.map_err(|error| format!("connecting to the server: {error}"))?;
        // No two stretches are alike: 251 is prime and larger than their number.
        let pattern = (0..cell.bytes + STRETCHES).map(|at| (at % 251) as u8).collect();
        Ok(Load { clients, epoll, pattern, bytes: cell.bytes })
    }

    /// Runs a batch; how many messages came back. When it returns nothing is under way.
    pub(super) fn run(&mut self, until: Until) -> Result<u64, String> {
        let begun = Instant::now();
        let mut events: Vec<Event> = Vec::with_capacity(self.clients.len());
        let mut buffer = vec![0; self.bytes];
        let mut to_send: Vec<usize> = (0..self.clients.len()).collect();
        let (mut under_way, mut done) = (0, 0);
        self.clients.iter_mut().for_each(|client| client.sent = 0);
        loop {
            for at in to_send.drain(..) {
                self.send(at)?;
                under_way += 1;
            }
            if under_way == 0 {
                return Ok(done);
            }
            events.clear();
            epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&SILENCE)).map_err(|error| error.to_string())?;
            if events.is_empty() {
                return Err(format!("the server is silent with {under_way} messages under way"));
            }
            let time_left = match until {
                Until::Passed(limit) => begun.elapsed() < limit,
                Until::Each(_) => true,
            };
            for event in &events {
                let data = event.data;
                let at = data.u64() as usize;
                if !self.receive(at, &mut buffer)? {
                    continue;
                }
                under_way -= 1;
                done += 1;
                let goes_on = match until {
                    Until::Passed(_) => time_left,
                    Until::Each(count) => self.clients[at].sent < count,
                };
                if goes_on {
                    to_send.push(at);
                }
            }
        }
    }

    fn send(&mut self, at: usize) -> Result<(), String> {
        let client = &mut self.clients[at];
        client.sent += 1;
        match (&client.stream).write(&self.pattern[at % STRETCHES..][..self.bytes]) {
            Ok(count) if count == self.bytes => Ok(()),
            Ok(count) => Err(format!("only {count} bytes fit into an empty send buffer")),
            Err(error) => Err(format!("sending to the server: {error}")),
        }
    }

    /// Whether the reply is complete.
    fn receive(&mut self, at: usize, buffer: &mut [u8]) -> Result<bool, String> {
        let client = &mut self.clients[at];
        let part = &mut buffer[client.received..];
        let count = match (&client.stream).read(part) {
            Ok(0) => return Err("the server closed a connection".to_owned()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(format!("receiving from the server: {error}")),
        };
        if part[..count] != self.pattern[at % STRETCHES + client.received..][..count] {
            return Err("the server sent back something else than it was sent".to_owned());
        }
        client.received = (client.received + count) % self.bytes;
        Ok(client.received == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server of two connections that sends back what `reply` makes of what it read.
    fn server(reply: impl Fn(&mut [u8]) + Copy + Send + 'static) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut buffer = [0; 100];
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        reply(&mut buffer[..count]);
                        stream.write_all(&buffer[..count]).unwrap();
                    }
                });
            }
        });
        port
    }

    #[test]
    fn every_connection_gets_as_many_messages_as_asked_for() {
        let mut load = Load::connect(server(|_| {}), Cell { connections: 3, bytes: 4096 }).unwrap();
        assert_eq!(load.run(Until::Each(5)), Ok(15));
        assert_eq!(load.run(Until::Each(1)), Ok(3));
    }

    #[test]
    fn a_reply_that_is_not_an_echo_is_refused() {
        let mut load = Load::connect(server(|bytes| bytes[0] ^= 1), Cell { connections: 1, bytes: 64 }).unwrap();
        assert!(load.run(Until::Each(1)).unwrap_err().contains("something else"));
    }
}
