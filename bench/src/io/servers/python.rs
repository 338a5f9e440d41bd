//! CPython: what people write for each loop. Streams for asyncio; for uvloop protocols, which is where it shines.

/// `argv[1]` names the loop.
pub(super) const SCRIPT: &str = r#"
import asyncio, ctypes, socket, sys

ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM: whatever ends the bench ends its servers.

async def serve(reader, writer):
    while data := await reader.read(8192):
        writer.write(data)
        await writer.drain()
    writer.close()

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)

async def main(streams):
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    if streams:
        server = await asyncio.start_server(serve, sock=listener, backlog=1024)
    else:
        server = await asyncio.get_running_loop().create_server(Echo, sock=listener, backlog=1024)
    print(listener.getsockname()[1], flush=True)
    await server.serve_forever()

if sys.argv[1] == "uvloop":
    import uvloop
    loop = uvloop.new_event_loop()
else:
    loop = asyncio.new_event_loop()
loop.run_until_complete(main(sys.argv[1] == "asyncio"))
"#;
