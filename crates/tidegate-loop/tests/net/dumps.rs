//! A task dump says at which socket, pipe or child a task waits.

use tidegate_loop::net::{TcpListener, TcpStream};
use tidegate_loop::process::Command;
use tidegate_loop::{EventLoop, SelectorKind, TaskState, spawn, yield_now};

fn waits(dump: &tidegate_loop::TaskDump, name: &str) -> String {
    let task = dump.tasks().iter().find(|task| &*task.name == name).expect("a task of that name");
    assert!(matches!(task.state, TaskState::Waiting(_)), "{dump}");
    task.state.to_string()
}

#[test]
fn a_dump_names_the_socket_and_the_child_a_task_waits_for() {
    for kind in [SelectorKind::Select, SelectorKind::EpollLevel, SelectorKind::Epoll, SelectorKind::IoUring] {
        names_what_is_waited_for(kind);
    }
}

fn names_what_is_waited_for(kind: SelectorKind) {
    let event_loop = EventLoop::builder().selector(kind).build().unwrap();
    let main = async {
        let handle = tidegate_loop::LoopHandle::current();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let mut child = Command::new("sleep").arg("60").kill_on_drop(true).spawn().unwrap();

        let accepting = handle.task().name("accepting").spawn(async move { listener.accept().await.map(drop) });
        let reading = handle.task().name("reading").spawn(async move { client.read(&mut [0; 8]).await.map(drop) });
        let parent = handle.task().name("parent").spawn(async move { child.wait().await.map(drop) });
        let outside = handle.task().name("outside").spawn(std::future::pending::<()>());
        for _ in 0..3 {
            yield_now().await;
        }
        let dump = handle.dump();
        assert!(
            waits(&dump, "accepting").starts_with(&format!("waits for a connection to TCP {address} (descriptor "))
        );
        assert!(
            waits(&dump, "reading")
                .starts_with(&format!("waits for something to read from TCP {address} (descriptor ")),
            "{dump}"
        );
        assert!(waits(&dump, "parent").starts_with("waits for a child process to end (descriptor "), "{dump}");
        assert_eq!(waits(&dump, "outside"), "waits for something outside of the loop");
        drop((accepting, reading, parent, outside, server));
    };
    event_loop.run_until_complete(async { spawn(main).await.unwrap() }).unwrap();
}
