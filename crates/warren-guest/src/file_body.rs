//! A file as the body of an answer, read piece by piece.

use std::fs::File;
use std::io::{self, Read as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::task::JoinHandle;

/// As much is read at once.
const LONGEST_PIECE: u64 = 128 << 10;

/// The first `length` bytes of a file. A file that has become shorter is an error, so that the client
/// sees a broken connection and not a short file.
#[derive(Debug)]
pub(crate) struct FileBody {
    file: Option<File>,
    reading: Option<JoinHandle<io::Result<Piece>>>,
    left: u64,
}

/// The file, and what was read of it.
type Piece = (File, Vec<u8>);

impl FileBody {
    pub(crate) fn new(file: File, length: u64) -> FileBody {
        FileBody { file: Some(file), reading: None, left: length }
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if let Some(mut file) = self.file.take() {
            let length = self.left.min(LONGEST_PIECE);
            self.reading = Some(tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; usize::try_from(length).unwrap_or(0)];
                let length = file.read(&mut piece)?;
                piece.truncate(length);
                Ok((file, piece))
            }));
        }
        let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(context)).unwrap_or_else(|gone| Err(io::Error::other(gone)));
        self.reading = None;
        Poll::Ready(Some(read.and_then(|(file, piece)| {
            if piece.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.left -= piece.len() as u64;
            self.file = Some(file);
            Ok(Frame::data(piece.into()))
        })))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
