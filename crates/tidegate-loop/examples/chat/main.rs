//! A chat server: each client sends its name in the first line, and every line after that goes to all other clients. One
//! thread, one task per client; a client that reads slowly does not keep the others waiting.
//!
//! ```text
//! cargo run -p tidegate-loop --example chat -- 127.0.0.1:4000
//! nc 127.0.0.1 4000
//! ```

mod room;

use tidegate_loop::net::{Server, TcpListener};
use tidegate_loop::run;

fn main() {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:4000".to_owned());
    let served = run(async {
        let listener = TcpListener::bind(address).await?;
        println!("chatting on {}", listener.local_addr()?);
        let room = room::Room::default();
        let _server = Server::builder().serve(listener, move |stream, peer| room.clone().visit(stream, peer));
        std::future::pending::<std::io::Result<()>>().await
    });
    match served {
        Ok(Err(error)) => {
            eprintln!("chat: {error}");
            std::process::exit(2);
        }
        Err(error) => {
            eprintln!("chat: {error}");
            std::process::exit(2);
        }
        Ok(Ok(())) => {}
    }
}
