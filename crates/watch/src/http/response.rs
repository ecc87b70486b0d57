// SPDX-License-Identifier: Apache-2.0
//! An answer: status, type and bytes, and its HTTP head.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body_util::{Either, Full};
use hyper::body::{Bytes, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use hyper::{HeaderMap, StatusCode};
use tokio::sync::oneshot;

const TEXT: &str = "text/plain; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub content_type: &'static str,
    pub body: Arc<[u8]>,
}

impl Response {
    pub fn new(content_type: &'static str, body: impl Into<Arc<[u8]>>) -> Self {
        Response { status: 200, content_type, body: body.into() }
    }

    /// One line of text.
    pub fn line(status: u16, text: impl std::fmt::Display) -> Self {
        let body = format!("{text}\n").into_bytes().into();
        Response { status, content_type: TEXT, body }
    }

    /// As hyper's type.
    pub(super) fn into_http(self) -> hyper::Response<Body> {
        let body = Either::Left(Full::new(Bytes::from_owner(self.body)));
        http(self.status, self.content_type, body)
    }
}

/// The body of an answer.
pub(super) type Body = Either<Full<Bytes>, Promise>;

/// An answer whose head is sent before it is known: its final status is the first word of the body.
pub(super) fn promised(response: oneshot::Receiver<Response>) -> hyper::Response<Body> {
    http(202, TEXT, Either::Right(Promise(Some(response))))
}

/// Answers must not be cached, framed by other sites, or interpreted as another type.
fn http(status: u16, content_type: &'static str, body: Body) -> hyper::Response<Body> {
    let mut response = hyper::Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    ]);
    response
}

/// A body that is sent when the answer is known.
pub(super) struct Promise(Option<oneshot::Receiver<Response>>);

impl hyper::body::Body for Promise {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(response) = &mut self.0 else { return Poll::Ready(None) };
        let response = ready!(Pin::new(response).poll(context))
            .unwrap_or_else(|_| Response::line(503, "this server is stopping"));
        self.0 = None;
        let text = [format!("{} ", response.status).as_bytes(), &response.body].concat();
        Poll::Ready(Some(Ok(Frame::data(text.into()))))
    }
}
