//! Bodies of requests and responses: one type both ways.

mod answer;
mod gunzip;

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use http_body::{Body as HttpBody, Frame, SizeHint};
use serde::de::DeserializeOwned;

pub(crate) use answer::{Answer, BodyLimits};

use crate::error::{Error, with_causes};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// As much as [`Body::bytes`], [`Body::text`] and [`Body::json`] collect.
pub const COLLECTED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A body, in memory or as a stream. A response's comes as it arrives: nothing is read ahead beyond the connection's
/// buffer, and its connection goes back to the pool when the end has been read. Dropped before, the connection is closed.
///
/// ```
/// use tidegate_http::Body;
///
/// tidegate_loop::run(async {
///     assert_eq!(Body::from("text").text().await.unwrap(), "text");
///     let mut body = Body::from(vec![1, 2, 3]);
///     assert_eq!(body.chunk().await.unwrap().unwrap(), [1, 2, 3].as_slice());
///     assert_eq!(body.chunk().await.unwrap(), None);
/// })
/// .unwrap();
/// ```
#[derive(Default)]
pub struct Body {
    kind: Kind,
}

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Full(Bytes),
    Stream(Pin<Box<dyn HttpBody<Data = Bytes, Error = BoxError>>>),
    Answer(Box<Answer>),
}

impl Body {
    /// No body.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// assert!(tidegate_http::Body::empty().bytes().await.unwrap().is_empty());
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn empty() -> Body {
        Body::default()
    }

    /// A body made while it is sent; its length is not known, so it goes out in chunks. A request with one is never
    /// repeated by the client, for it cannot be.
    ///
    /// ```
    /// use tidegate_http::Body;
    /// # struct Once(Option<bytes::Bytes>);
    /// # impl futures_core::Stream for Once {
    /// #     type Item = std::io::Result<bytes::Bytes>;
    /// #     fn poll_next(mut self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Option<Self::Item>> {
    /// #         std::task::Poll::Ready(self.0.take().map(Ok))
    /// #     }
    /// # }
    /// # let stream = Once(Some("piece by piece".into()));
    /// # tidegate_loop::run(async {
    /// assert_eq!(Body::stream(stream).text().await.unwrap(), "piece by piece");
    /// # }).unwrap();
    /// ```
    pub fn stream<S, E>(stream: S) -> Body
    where
        S: Stream<Item = Result<Bytes, E>> + 'static,
        E: Into<BoxError>,
    {
        Body { kind: Kind::Stream(Box::pin(Streamed { stream: Box::pin(stream), left: None })) }
    }

    /// As [`stream`](Self::stream), with the length told in advance; a stream that does not keep to it fails the request.
    ///
    /// ```
    /// use http_body::Body as _;
    /// # struct Never;
    /// # impl futures_core::Stream for Never {
    /// #     type Item = std::io::Result<bytes::Bytes>;
    /// #     fn poll_next(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Option<Self::Item>> {
    /// #         std::task::Poll::Pending
    /// #     }
    /// # }
    /// # let stream = Never;
    /// assert_eq!(tidegate_http::Body::sized_stream(100, stream).size_hint().exact(), Some(100));
    /// ```
    pub fn sized_stream<S, E>(length: u64, stream: S) -> Body
    where
        S: Stream<Item = Result<Bytes, E>> + 'static,
        E: Into<BoxError>,
    {
        Body { kind: Kind::Stream(Box::pin(Streamed { stream: Box::pin(stream), left: Some(length) })) }
    }

    pub(crate) fn answer(answer: Answer) -> Body {
        Body { kind: Kind::Answer(Box::new(answer)) }
    }

    /// The same again, where that is possible.
    pub(crate) fn again(&self) -> Option<Body> {
        match &self.kind {
            Kind::Empty => Some(Body::empty()),
            Kind::Full(bytes) => Some(Body::from(bytes.clone())),
            Kind::Stream(_) | Kind::Answer(_) => None,
        }
    }

    /// Whose body it is, for messages.
    fn host(&self) -> &str {
        match &self.kind {
            Kind::Answer(answer) => answer.host(),
            _ => "this request",
        }
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// The body broke off, or a time-out ran out.
    ///
    /// # Cancel safety
    /// Safe: a piece is either returned or still to come.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let mut body = tidegate_http::Body::from("all");
    /// while let Some(piece) = body.chunk().await.unwrap() {
    ///     assert_eq!(piece, "all");
    /// }
    /// # }).unwrap();
    /// ```
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            match poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx)).await {
                None => return Ok(None),
                Some(Err(error)) => return Err(error),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// All of it, up to [`COLLECTED_BYTES_MAX`].
    ///
    /// # Errors
    /// As [`bytes_up_to`](Self::bytes_up_to).
    ///
    /// # Cancel safety
    /// Dropped, what was read is lost.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// assert_eq!(tidegate_http::Body::from("all").bytes().await.unwrap(), "all");
    /// # }).unwrap();
    /// ```
    pub async fn bytes(self) -> Result<Bytes, Error> {
        self.bytes_up_to(COLLECTED_BYTES_MAX).await
    }

    /// All of it, up to `limit` bytes after decompression.
    ///
    /// # Errors
    /// [`Error::TooLarge`] as soon as there is more, whatever the server announced; otherwise as [`chunk`](Self::chunk).
    ///
    /// # Cancel safety
    /// Dropped, what was read is lost.
    ///
    /// ```
    /// use tidegate_http::{Body, Error};
    /// # tidegate_loop::run(async {
    /// assert!(matches!(Body::from("too long").bytes_up_to(3).await, Err(Error::TooLarge { limit: 3, .. })));
    /// # }).unwrap();
    /// ```
    pub async fn bytes_up_to(mut self, limit: u64) -> Result<Bytes, Error> {
        let too_large = |body: &Body| Error::TooLarge { host: body.host().to_owned(), limit };
        if self.size_hint().lower() > limit {
            return Err(too_large(&self));
        }
        let Some(first) = self.chunk().await? else { return Ok(Bytes::new()) };
        if first.len() as u64 > limit {
            return Err(too_large(&self));
        }
        let Some(second) = self.chunk().await? else { return Ok(first) };
        let mut all = BytesMut::from(first);
        let mut next = Some(second);
        while let Some(piece) = next {
            if (all.len() + piece.len()) as u64 > limit {
                return Err(too_large(&self));
            }
            all.extend_from_slice(&piece);
            next = self.chunk().await?;
        }
        Ok(all.freeze())
    }

    /// All of it as text, up to [`COLLECTED_BYTES_MAX`]; what is not UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// As [`bytes_up_to`](Self::bytes_up_to).
    ///
    /// # Cancel safety
    /// Dropped, what was read is lost.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// assert_eq!(tidegate_http::Body::from("all").text().await.unwrap(), "all");
    /// # }).unwrap();
    /// ```
    pub async fn text(self) -> Result<String, Error> {
        let bytes = self.bytes().await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// All of it, up to [`COLLECTED_BYTES_MAX`], read as JSON.
    ///
    /// # Errors
    /// [`Error::Json`] when it is none; otherwise as [`bytes_up_to`](Self::bytes_up_to).
    ///
    /// # Cancel safety
    /// Dropped, what was read is lost.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// let numbers: Vec<u32> = tidegate_http::Body::from("[1, 2]").json().await.unwrap();
    /// assert_eq!(numbers, [1, 2]);
    /// # }).unwrap();
    /// ```
    pub async fn json<T: DeserializeOwned>(self) -> Result<T, Error> {
        let host = self.host().to_owned();
        let bytes = self.bytes().await?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Json { host, reason: error.to_string() })
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut self.kind {
            Kind::Empty => Poll::Ready(None),
            Kind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.kind = Kind::Empty;
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Kind::Stream(stream) => {
                let frame = ready!(stream.as_mut().poll_frame(cx));
                Poll::Ready(frame.map(|frame| {
                    frame.map_err(|error| Error::Body { host: "this request".to_owned(), reason: with_causes(&*error) })
                }))
            }
            Kind::Answer(answer) => answer.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Empty => true,
            Kind::Full(bytes) => bytes.is_empty(),
            Kind::Stream(stream) => stream.is_end_stream(),
            Kind::Answer(answer) => answer.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Stream(stream) => stream.size_hint(),
            Kind::Answer(answer) => answer.size_hint(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = self.size_hint();
        f.debug_struct("Body").field("at_least", &hint.lower()).field("at_most", &hint.upper()).finish()
    }
}

impl From<()> for Body {
    fn from((): ()) -> Body {
        Body::empty()
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body { kind: Kind::Full(bytes) }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Body {
        Bytes::from_static(text.as_bytes()).into()
    }
}

/// A stream as a body.
struct Streamed<S> {
    stream: Pin<Box<S>>,
    /// Bytes still to come, where that was told.
    left: Option<u64>,
}

impl<S, E> HttpBody for Streamed<S>
where
    S: Stream<Item = Result<Bytes, E>>,
    E: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let item = ready!(self.stream.as_mut().poll_next(cx));
        Poll::Ready(match (item, &mut self.left) {
            (Some(Err(error)), _) => Some(Err(error.into())),
            (None, Some(left)) if *left > 0 => {
                Some(Err(format!("the stream ended {left} bytes before the length that was told").into()))
            }
            (None, _) => None,
            (Some(Ok(data)), None) => Some(Ok(Frame::data(data))),
            (Some(Ok(data)), Some(left)) => match left.checked_sub(data.len() as u64) {
                Some(rest) => {
                    *left = rest;
                    Some(Ok(Frame::data(data)))
                }
                None => Some(Err("the stream is longer than the length that was told".into())),
            },
        })
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}
