//! An answer: status, type and bytes, and the head they travel under.

use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use hyper::{HeaderMap, StatusCode};

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
        Response { status, content_type: "text/plain; charset=utf-8", body }
    }

    /// As it is sent. Nothing here is to be kept by caches, framed by other sites or run.
    pub(super) fn into_http(self) -> hyper::Response<Full<Bytes>> {
        let mut response = hyper::Response::new(Full::new(Bytes::from_owner(self.body)));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        *response.headers_mut() = HeaderMap::from_iter([
            (CONTENT_TYPE, HeaderValue::from_static(self.content_type)),
            (CACHE_CONTROL, HeaderValue::from_static("no-store")),
            (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        ]);
        response
    }
}
