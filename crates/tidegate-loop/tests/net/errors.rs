//! Errors keep their kind, name the address, and say what to do.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::rc::Rc;

use tidegate_loop::EventLoop;
use tidegate_loop::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};

use super::support::{listener, pair, refusing, run};

#[test]
fn a_refused_connection_names_the_address() {
    run(async {
        let address = refusing();
        let error = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let expected = format!("cannot connect to {address}: connection refused (is a server listening there?)");
        assert_eq!(error.to_string(), expected);
    });
}

#[test]
fn an_address_in_use_names_the_address() {
    run(async {
        let listener = listener().await;
        let address = listener.local_addr().unwrap();
        let error = TcpListener::bind(address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(
            error.to_string().starts_with(&format!("cannot listen on {address}: the address is in use")),
            "{error}"
        );
    });
}

#[test]
fn an_address_of_another_machine_cannot_be_bound() {
    run(async {
        // Reserved for documentation: no host has it.
        let address = (Ipv4Addr::new(192, 0, 2, 1), 0);
        for error in [TcpListener::bind(address).await.unwrap_err(), UdpSocket::bind(address).await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
            assert!(error.to_string().contains("192.0.2.1:0: the address is not one of this machine's"), "{error}");
        }
    });
}

#[test]
fn an_unreachable_address_is_named() {
    run(async {
        // TCP has no connection to a broadcast address.
        let error = TcpStream::connect("255.255.255.255:80").await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NetworkUnreachable | ErrorKind::PermissionDenied), "{error:?}");
        assert!(error.to_string().starts_with("cannot connect to 255.255.255.255:80: "), "{error}");
    });
}

#[test]
fn a_malformed_address_says_how_to_write_one() {
    run(async {
        let error = TcpStream::connect("localhost").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("write host:port"), "{error}");
    });
}

#[test]
fn a_path_that_is_missing_or_taken_is_named() {
    run(async {
        let path = std::env::temp_dir().join(format!("tidegate-test-{}", std::process::id()));
        let error = UnixStream::connect(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        let _listener = UnixListener::bind(&path).unwrap();
        assert_eq!(UnixListener::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        std::fs::remove_file(&path).unwrap();
    });
}

#[test]
fn a_socket_cannot_be_waited_for_on_another_loop() {
    let (one, other) = (EventLoop::new().unwrap(), EventLoop::new().unwrap());
    let (near, _far) = one.run_until_complete(pair()).unwrap();
    let (near, read) = (Rc::new(near), async |near: Rc<TcpStream>| near.read(&mut [0; 8]).await);
    let error = other.run_until_complete(read(near.clone())).unwrap().unwrap_err();
    assert!(error.to_string().contains("belongs to another loop"), "{error}");
    // Once it has waited at home, it knows when that is gone.
    let waiting = one.spawn(read(near.clone()));
    one.run_until_idle().unwrap();
    one.close().unwrap();
    assert!(waiting.is_finished());
    let error = other.run_until_complete(read(near)).unwrap().unwrap_err();
    assert!(error.to_string().contains("is closed"), "{error}");
}
