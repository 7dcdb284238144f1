//! Finds the position in a log, and in its rotated files, at which a reader begins.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// The block size for searching backwards for the beginning of a line.
const BLOCK: u64 = 64 << 10;

/// Opens the files of a log, oldest first; the last is the current one.
pub(super) fn files(path: &Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    let mut name = path.to_owned();
    let mut number = 0_u32;
    loop {
        match File::open(&name) {
            Ok(file) => files.push(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound && number > 0 => break,
            // Nothing was written yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        number += 1;
        name = older(path, number);
    }
    files.reverse();
    Ok(files)
}

fn older(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// Returns the file, and the offset in it, at which the last `lines` lines begin.
pub(super) fn tail(files: &[File], lines: u64) -> io::Result<(usize, u64)> {
    let mut left = lines;
    for (index, file) in files.iter().enumerate().rev() {
        let length = file.metadata()?.len();
        if left == 0 {
            return Ok((index, length));
        }
        match tail_of(file, length, left)? {
            Found::At(offset) => return Ok((index, offset)),
            Found::Only(there) => left -= there,
        }
    }
    Ok((0, 0))
}

enum Found {
    /// The lines begin at this offset.
    At(u64),
    /// The file has only this many lines.
    Only(u64),
}

fn tail_of(file: &File, length: u64, lines: u64) -> io::Result<Found> {
    let mut buffer = vec![0; usize::try_from(BLOCK).unwrap_or(usize::MAX)];
    let mut ends = 0;
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let block = &mut buffer[..usize::try_from(end - start).unwrap_or(0)];
        file.read_exact_at(block, start)?;
        for (index, byte) in block.iter().enumerate().rev() {
            let offset = start + index as u64;
            // The newline at the very end closes the last line and does not open another.
            if *byte == b'\n' && offset + 1 < length {
                ends += 1;
                if ends == lines {
                    return Ok(Found::At(offset + 1));
                }
            }
        }
        end = start;
    }
    let all = ends + u64::from(length > 0);
    Ok(if all >= lines { Found::At(0) } else { Found::Only(all) })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(text: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn the_last_lines_are_found_over_files_and_blocks() {
        let files = [file("a\nb\nc\n"), file("d\ne\n")];
        for (lines, place) in [(0, (1, 4)), (1, (1, 2)), (2, (1, 0)), (3, (0, 4)), (5, (0, 0)), (9, (0, 0))] {
            assert_eq!(tail(&files, lines).unwrap(), place, "{lines} lines");
        }
        let long = format!("{}\nlast\n", "x".repeat(200_000));
        assert_eq!(tail(&[file(&long)], 1).unwrap(), (0, 200_001));
        assert_eq!(tail(&[file("")], 3).unwrap(), (0, 0));
        assert_eq!(tail(&[file("unfinished")], 1).unwrap(), (0, 0));
        assert_eq!(tail(&[], 1).unwrap(), (0, 0));
    }

    #[test]
    fn older_files_come_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        assert_eq!(files(&path).unwrap().len(), 0);
        for (name, text) in [("0.log", "new"), ("0.log.1", "old"), ("0.log.2", "oldest")] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let lengths: Vec<u64> =
            files(&path).unwrap().iter().map(|file| file.metadata().unwrap().len()).collect();
        assert_eq!(lengths, [6, 3, 3]);
    }
}
