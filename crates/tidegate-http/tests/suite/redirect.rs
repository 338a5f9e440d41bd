//! Redirections: not unless asked for, and then with care.

use axum::Router;
use axum::extract::Request as Incoming;
use axum::response::Redirect;
use axum::routing::{any, get, post};
use http::{HeaderMap, Method, Request, StatusCode};
use tidegate_http::{Body, Client, Error};

use crate::support::{client, on_loop, pieces, plain, running};

fn following() -> Client {
    plain().redirects(5).build().unwrap()
}

fn app() -> Router {
    async fn show(method: Method, headers: HeaderMap, body: String) -> String {
        let secret = headers.contains_key("authorization") || headers.contains_key("x-api-key");
        format!("{method} {body} secret={secret} type={}", headers.contains_key("content-type"))
    }
    Router::new()
        .route("/end", any(show))
        .route("/see-other", any(|| async { Redirect::to("/end") }))
        .route("/same", any(|| async { Redirect::temporary("end") }))
        .route("/round", get(|| async { Redirect::permanent("/round") }))
        .route("/nowhere", get(|| async { (StatusCode::FOUND, "no location") }))
        .route(
            "/moved",
            any(|request: Incoming| async move {
                let to = request.uri().query().unwrap_or_default().to_owned();
                (StatusCode::MOVED_PERMANENTLY, [("location", to)])
            }),
        )
        .route("/post", post(|| async { Redirect::to("/end") }))
}

#[test]
fn redirection_is_handed_out_unless_following_was_asked_for() {
    on_loop(async {
        let server = running(app()).await;
        let response = client().get(&format!("{}/see-other", server.url)).await.unwrap();
        assert_eq!((response.status().as_u16(), &response.headers()["location"]), (303, &"/end".parse().unwrap()));
    });
}

#[test]
fn see_other_becomes_get_and_leaves_the_body_behind() {
    on_loop(async {
        let server = running(app()).await;
        let request = Request::post(format!("{}/post", server.url)).header("content-type", "text/plain");
        let response = following().request(request.body("body").unwrap()).await.unwrap();
        assert_eq!(response.into_body().text().await.unwrap(), "GET  secret=false type=false");
    });
}

#[test]
fn temporary_redirection_repeats_method_body_and_secrets_on_the_same_host() {
    on_loop(async {
        let server = running(app()).await;
        let client = following();
        let request = Request::put(format!("{}/same", server.url)).header("x-api-key", "s3cret");
        let response = client.request(request.body("body").unwrap()).await.unwrap();
        assert_eq!(response.into_body().text().await.unwrap(), "PUT body secret=true type=false");
        assert_eq!(client.stats().total, 1, "the connection of the first is used for the second");

        let request = Request::put(format!("{}/same", server.url)).body(Body::stream(pieces(&["once"]))).unwrap();
        let error = client.request(request).await.unwrap_err();
        assert!(matches!(&error, Error::Redirect { reason, .. } if reason.contains("stream")), "{error:?}");
    });
}

#[test]
fn secrets_do_not_go_to_another_host() {
    on_loop(async {
        let (one, other) = (running(app()).await, running(app()).await);
        for (host, secret) in [(&one, true), (&other, false)] {
            let request = Request::get(format!("{}/moved?{}/end", one.url, host.url))
                .header("authorization", "Bearer s3cret")
                .header("x-api-key", "s3cret");
            let response = following().request(request.body(()).unwrap()).await.unwrap();
            let text = response.into_body().text().await.unwrap();
            assert!(text.contains(&format!("secret={secret}")), "{text}");
        }
    });
}

#[test]
fn circle_ends_after_as_many_as_allowed() {
    on_loop(async {
        let server = running(app()).await;
        let error = following().get(&format!("{}/round", server.url)).await.unwrap_err();
        assert!(matches!(&error, Error::Redirect { reason, .. } if reason == "more than 5 in a row"), "{error:?}");
        assert_eq!(server.handle.stats().requests, 6);
    });
}

#[test]
fn redirection_to_nowhere_is_a_response_and_to_nonsense_an_error() {
    on_loop(async {
        let server = running(app()).await;
        let response = following().get(&format!("{}/nowhere", server.url)).await.unwrap();
        assert_eq!(response.status(), 302);
        let error = following().get(&format!("{}/moved?ftp://files.example/", server.url)).await.unwrap_err();
        assert!(matches!(error, Error::BadUrl { .. }), "{error:?}");
    });
}
