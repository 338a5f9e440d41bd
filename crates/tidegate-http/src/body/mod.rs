//! Bodies of requests and responses.

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

/// The most bytes that [`Body::bytes`], [`Body::text`] and [`Body::json`] collect.
pub const COLLECTED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A body, in memory or as a stream. A response's body is read as it arrives, not ahead of its reader beyond the
/// connection's buffer. Its connection returns to the pool with the last byte; dropping the body earlier closes the
/// connection.
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
    kind: BodyKind,
}

#[derive(Default)]
enum BodyKind {
    #[default]
    Empty,
    Full(Bytes),
    Stream(Pin<Box<dyn HttpBody<Data = Bytes, Error = BoxError>>>),
    Answer(Box<Answer>),
}

impl Body {
    /// Creates an empty body.
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

    /// Creates a body that is produced while it is sent. Its length is not known, so it is sent in chunks. The client never
    /// repeats a request with such a body.
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
        Body { kind: BodyKind::Stream(Box::pin(Streamed { stream: Box::pin(stream), left: None })) }
    }

    /// As [`stream`](Self::stream), with a stated length. A stream of another length fails the request.
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
        Body { kind: BodyKind::Stream(Box::pin(Streamed { stream: Box::pin(stream), left: Some(length) })) }
    }

    pub(crate) fn answer(answer: Answer) -> Body {
        Body { kind: BodyKind::Answer(Box::new(answer)) }
    }

    /// Returns a copy if the body is in memory.
    pub(crate) fn again(&self) -> Option<Body> {
        match &self.kind {
            BodyKind::Empty => Some(Body::empty()),
            BodyKind::Full(bytes) => Some(Body::from(bytes.clone())),
            BodyKind::Stream(_) | BodyKind::Answer(_) => None,
        }
    }

    /// The host that the body came from, for messages.
    fn host(&self) -> &str {
        match &self.kind {
            BodyKind::Answer(answer) => answer.host(),
            _ => "this request",
        }
    }

    /// Returns the next piece, or `None` at the end.
    ///
    /// # Errors
    /// If the body broke off or a time-out expired.
    ///
    /// # Cancel safety
    /// Safe: dropping the future loses no piece.
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

    /// Returns the whole body, up to [`COLLECTED_BYTES_MAX`].
    ///
    /// # Errors
    /// As [`bytes_up_to`](Self::bytes_up_to).
    ///
    /// # Cancel safety
    /// Dropping the future loses what was read.
    ///
    /// ```
    /// # tidegate_loop::run(async {
    /// assert_eq!(tidegate_http::Body::from("all").bytes().await.unwrap(), "all");
    /// # }).unwrap();
    /// ```
    pub async fn bytes(self) -> Result<Bytes, Error> {
        self.bytes_up_to(COLLECTED_BYTES_MAX).await
    }

    /// Returns the whole body, up to `limit` bytes after decompression.
    ///
    /// # Errors
    /// [`Error::TooLarge`] as soon as there are more bytes or more are announced; otherwise as [`chunk`](Self::chunk).
    ///
    /// # Cancel safety
    /// Dropping the future loses what was read.
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

    /// Returns the whole body as text, up to [`COLLECTED_BYTES_MAX`]. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// As [`bytes_up_to`](Self::bytes_up_to).
    ///
    /// # Cancel safety
    /// Dropping the future loses what was read.
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

    /// Parses the whole body, up to [`COLLECTED_BYTES_MAX`], as JSON.
    ///
    /// # Errors
    /// [`Error::Json`] if it is not the JSON expected; otherwise as [`bytes_up_to`](Self::bytes_up_to).
    ///
    /// # Cancel safety
    /// Dropping the future loses what was read.
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
            BodyKind::Empty => Poll::Ready(None),
            BodyKind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.kind = BodyKind::Empty;
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            BodyKind::Stream(stream) => {
                let frame = ready!(stream.as_mut().poll_frame(cx));
                Poll::Ready(frame.map(|frame| {
                    frame.map_err(|error| Error::Body { host: "this request".to_owned(), reason: with_causes(&*error) })
                }))
            }
            BodyKind::Answer(answer) => answer.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Empty => true,
            BodyKind::Full(bytes) => bytes.is_empty(),
            BodyKind::Stream(stream) => stream.is_end_stream(),
            BodyKind::Answer(answer) => answer.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Empty => SizeHint::with_exact(0),
            BodyKind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodyKind::Stream(stream) => stream.size_hint(),
            BodyKind::Answer(answer) => answer.size_hint(),
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
        Body { kind: BodyKind::Full(bytes) }
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
    /// The number of bytes still to come, if the length was stated.
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
                Some(Err(format!("the stream ended {left} bytes before its stated length").into()))
            }
            (None, _) => None,
            (Some(Ok(data)), None) => Some(Ok(Frame::data(data))),
            (Some(Ok(data)), Some(left)) => match left.checked_sub(data.len() as u64) {
                Some(rest) => {
                    *left = rest;
                    Some(Ok(Frame::data(data)))
                }
                None => Some(Err("the stream is longer than its stated length".into())),
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
