//! monoio: io_uring where it may, epoll where it must.

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{ListenerOpts, TcpListener, TcpStream};
use monoio::{FusionDriver, RuntimeBuilder};

use super::BUFFER_BYTES;
use crate::io::process::announce;

pub(super) fn echo() -> anyhow::Result<()> {
    RuntimeBuilder::<FusionDriver>::new().build()?.block_on(async {
        let options = ListenerOpts::new().backlog(1024).reuse_port(false);
        let listener = TcpListener::bind_with_config("127.0.0.1:0", &options)?;
        announce(listener.local_addr()?.port());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            monoio::spawn(serve(stream));
        }
    })
}

async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer: Vec<u8> = Vec::with_capacity(BUFFER_BYTES);
    loop {
        let (read, filled) = stream.read(buffer).await;
        if read? == 0 {
            return Ok(());
        }
        // A read begins at the front and sets the length, so what is written is what was read.
        let (written, emptied) = stream.write_all(filled).await;
        written?;
        buffer = emptied;
    }
}
