//! Connections to a status page that stay open.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

/// `MetricsPage::CONNECTIONS_MAX`, as documented.
const CONNECTIONS_MAX: usize = 64;

/// More clients than may connect.
const CLIENTS: usize = CONNECTIONS_MAX + 36;

fn ask(mut stream: &TcpStream) {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
}

/// Reads one answer; the connection stays open.
fn answered(stream: &TcpStream) {
    let mut reader = BufReader::new(stream);
    let (mut head, mut len) = (String::new(), 0);
    while head != "\r\n" {
        head.clear();
        assert!(reader.read_line(&mut head).unwrap() > 0, "it was closed");
        if let Some(value) = head.to_ascii_lowercase().strip_prefix("content-length: ") {
            len = value.trim_end().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; len]).unwrap();
}

/// Connections to `port` that a program has accepted: those that wait for it belong to no descriptor yet. By their other end, as
/// a row of the table can come twice while the machine's other connections change it.
fn accepted(port: u16) -> usize {
    let (local, established) = (format!("0100007F:{port:04X}"), "01");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let accepted = rows.filter(|row| row[1] == local && row[3] == established && row[9] != "0");
    accepted.map(|row| row[2].to_owned()).collect::<HashSet<_>>().len()
}

/// A page takes 64 connections at a time, whatever they do; the others wait until one of them ends.
pub(crate) fn takes_64_connections(port: u16) {
    let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let (first, others) = clients.split_at(CONNECTIONS_MAX);
    others.iter().for_each(ask);
    // When it answers the second request, it has had every chance to accept clients that have waited since the first.
    for _ in 0..2 {
        first.iter().for_each(ask);
        first.iter().for_each(answered);
    }
    assert_eq!(accepted(port), CONNECTIONS_MAX);
    // Connections are accepted in their order: each that ends lets the next one in.
    let mut first = clients;
    for others in first.split_off(CONNECTIONS_MAX) {
        drop(first.pop().expect("there are more of them"));
        answered(&others);
        let accepted = accepted(port);
        assert!(accepted <= CONNECTIONS_MAX, "{accepted}");
        first.insert(0, others);
    }
}
