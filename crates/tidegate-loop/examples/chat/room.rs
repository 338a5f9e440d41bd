//! The room: its visitors, and which lines go to whom.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use tidegate_loop::Task;
use tidegate_loop::net::TcpStream;
use tidegate_loop::stream::StreamWriter;

/// A visitor with more unsent bytes than this is disconnected: it does not read.
const BACKLOG_MAX: usize = 1 << 20;

/// All visitors. A clone is the same room.
#[derive(Clone, Default)]
pub(crate) struct Room {
    people: Rc<RefCell<BTreeMap<SocketAddr, Person>>>,
}

struct Person {
    name: String,
    writer: StreamWriter,
    /// The task that reads what it says.
    visit: Task,
}

/// A visit. Dropping it removes the visitor and announces that, however the visit's task ends.
struct Stay {
    room: Room,
    peer: SocketAddr,
}

impl Room {
    /// Serves one person from the first line to the last.
    pub(crate) async fn visit(self, stream: TcpStream, peer: SocketAddr) {
        let (mut reader, writer) = stream.into_streams();
        writer.write(b"your name?\n");
        let Ok(Some(name)) = reader.read_line().await else { return };
        let name = String::from_utf8_lossy(&name).trim().to_owned();
        if name.is_empty() {
            return;
        }
        let stay = self.enter(peer, name, writer);
        // A line over the reader's limit ends the visit, as an error does.
        while let Ok(Some(line)) = reader.read_line().await {
            stay.say(&String::from_utf8_lossy(&line));
        }
    }

    fn enter(&self, peer: SocketAddr, name: String, writer: StreamWriter) -> Stay {
        self.broadcast(peer, &format!("* {name} is here"));
        writer.write(format!("* {} others are here\n", self.people.borrow().len()).as_bytes());
        self.people.borrow_mut().insert(peer, Person { name, writer, visit: Task::current() });
        Stay { room: self.clone(), peer }
    }

    /// Sends a line to all but `from`. Writing never waits, so a slow reader delays no other visitor.
    fn broadcast(&self, from: SocketAddr, line: &str) {
        let line = format!("{line}\n");
        for (_, person) in self.people.borrow().iter().filter(|(peer, _)| **peer != from) {
            if person.writer.buffered() > BACKLOG_MAX {
                person.writer.abort();
                person.visit.cancel();
            } else {
                person.writer.write(line.as_bytes());
            }
        }
    }
}

impl Stay {
    fn say(&self, text: &str) {
        let name = self.room.people.borrow().get(&self.peer).map(|person| person.name.clone());
        if let Some(name) = name {
            self.room.broadcast(self.peer, &format!("{name}: {text}"));
        }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let left = self.room.people.borrow_mut().remove(&self.peer);
        if let Some(person) = left {
            self.room.broadcast(self.peer, &format!("* {} has left", person.name));
        }
    }
}
