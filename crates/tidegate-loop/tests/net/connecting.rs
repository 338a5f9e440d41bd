//! Connecting: time-outs, and names with several addresses.

use std::io::ErrorKind;
use std::time::Duration;

use tidegate_loop::net::{AddressError, TcpStream};
use tidegate_loop::{spawn, yield_now};

use super::support::{Silent, listener, refusing, run};

const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn a_connect_that_is_not_answered_ends_with_its_time_out() {
    run(async {
        let silent = Silent::new();
        let connector = TcpStream::connector().timeout(Duration::from_millis(20));
        let error = connector.connect(silent.address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), format!("cannot connect to {}: no answer within 20ms", silent.address));
    });
}

#[test]
fn a_refusal_moves_on_to_the_next_address_at_once() {
    run(async {
        let listener = listener().await;
        let addresses = [refusing(), refusing(), listener.local_addr().unwrap()];
        let stream = TcpStream::connector().stagger(LONG).connect(&addresses[..]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[2]);
    });
}

#[test]
fn silence_moves_on_after_the_stagger_and_the_first_answer_wins() {
    run(async {
        let (silent, listener) = (Silent::new(), listener().await);
        let addresses = [silent.address, listener.local_addr().unwrap()];
        let stream = TcpStream::connector().stagger(Duration::from_millis(1)).connect(&addresses[..]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
    });
}

#[test]
fn before_the_stagger_is_over_the_next_address_is_left_alone() {
    run(async {
        let (silent, listener) = (Silent::new(), listener().await);
        let addresses = [silent.address, listener.local_addr().unwrap()];
        let connecting = spawn(async move { TcpStream::connector().stagger(LONG).connect(&addresses[..]).await });
        let accepting = spawn(async move { listener.accept().await.is_ok() });
        for _ in 0..200 {
            yield_now().await;
        }
        assert!(!connecting.is_finished() && !accepting.is_finished());
        connecting.cancel();
    });
}

#[test]
fn when_every_address_fails_the_error_names_them_all() {
    run(async {
        let addresses = [refusing(), refusing()];
        let error = TcpStream::connect(&addresses[..]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        for address in addresses {
            assert!(error.to_string().contains(&address.to_string()), "{error}");
        }
    });
}

#[test]
fn a_name_is_looked_up_and_every_address_is_tried() {
    run(async {
        let listener = listener().await;
        let port = listener.local_addr().unwrap().port();
        // "localhost" may be ::1 first, where nothing listens.
        let stream = TcpStream::connect(("localhost", port)).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap().port(), port);
        let error = TcpStream::connect("no-such-host.invalid:80").await.unwrap_err();
        let error = error.get_ref().unwrap().downcast_ref::<AddressError>().unwrap();
        assert_eq!(error.address(), "no-such-host.invalid:80");
    });
}
