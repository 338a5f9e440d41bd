//! A zip archive, written as it is read: entry after entry, deflated, sizes behind the data. No entry is in memory as a whole.
//! Archives of more than 4 GiB or 65,535 entries are refused rather than written wrong.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// What is read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// Names are UTF-8; sizes follow the data.
const FLAGS: u16 = 0x0808;

/// Writes an archive to `out`.
pub(crate) struct ZipWriter<W: Write> {
    out: Counted<W>,
    entries: Vec<Entry>,
}

struct Entry {
    name: String,
    crc: u32,
    compressed: u32,
    size: u32,
    offset: u32,
}

struct Counted<W> {
    inner: W,
    written: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.inner.write(bytes)?;
        self.written += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, "the archive would be larger than 4 GiB; download the files one by one")
}

impl<W: Write> ZipWriter<W> {
    pub(crate) fn new(out: W) -> ZipWriter<W> {
        ZipWriter { out: Counted { inner: out, written: 0 }, entries: Vec::new() }
    }

    /// Adds an entry. The name must be [safe](entry_name) and not be there yet.
    pub(crate) fn add(&mut self, name: &str, mut data: impl Read) -> io::Result<()> {
        if self.entries.len() == usize::from(u16::MAX) {
            return Err(too_large());
        }
        let offset = u32::try_from(self.out.written).map_err(|_| too_large())?;
        let name_len = u16::try_from(name.len()).map_err(|_| io::Error::other("the name of an entry is too long"))?;
        let mut head = Vec::with_capacity(30 + name.len());
        head.extend(0x0403_4b50_u32.to_le_bytes());
        for field in [20, FLAGS, 8, 0, DOS_DATE] {
            head.extend(field.to_le_bytes());
        }
        head.extend([0; 12]);
        head.extend(name_len.to_le_bytes());
        head.extend(0_u16.to_le_bytes());
        head.extend(name.as_bytes());
        self.out.write_all(&head)?;
        let begun = self.out.written;
        let mut deflate = DeflateEncoder::new(&mut self.out, Compression::fast());
        let mut crc = flate2::Crc::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut size = 0_u64;
        loop {
            let len = match data.read(&mut chunk) {
                Ok(0) => break,
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            crc.update(&chunk[..len]);
            size += len as u64;
            deflate.write_all(&chunk[..len])?;
        }
        deflate.finish()?;
        let compressed = u32::try_from(self.out.written - begun).map_err(|_| too_large())?;
        let size = u32::try_from(size).map_err(|_| too_large())?;
        let mut tail = Vec::with_capacity(16);
        for field in [0x0807_4b50, crc.sum(), compressed, size] {
            tail.extend(field.to_le_bytes());
        }
        self.out.write_all(&tail)?;
        self.entries.push(Entry { name: name.into(), crc: crc.sum(), compressed, size, offset });
        Ok(())
    }

    /// Writes the directory at the end.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        let start = u32::try_from(self.out.written).map_err(|_| too_large())?;
        for entry in &self.entries {
            let mut record = Vec::with_capacity(46 + entry.name.len());
            record.extend(0x0201_4b50_u32.to_le_bytes());
            // Made on Unix, so that the permissions below count.
            for field in [0x0314, 20, FLAGS, 8, 0, DOS_DATE] {
                record.extend(field.to_le_bytes());
            }
            for field in [entry.crc, entry.compressed, entry.size] {
                record.extend(field.to_le_bytes());
            }
            record.extend((entry.name.len() as u16).to_le_bytes());
            record.extend([0; 8]);
            record.extend((0o100_644_u32 << 16).to_le_bytes());
            record.extend(entry.offset.to_le_bytes());
            record.extend(entry.name.as_bytes());
            self.out.write_all(&record)?;
        }
        let length = u32::try_from(self.out.written - u64::from(start)).map_err(|_| too_large())?;
        let count = self.entries.len() as u16;
        let mut end = Vec::with_capacity(22);
        end.extend(0x0605_4b50_u32.to_le_bytes());
        end.extend([0; 4]);
        end.extend(count.to_le_bytes());
        end.extend(count.to_le_bytes());
        end.extend(length.to_le_bytes());
        end.extend(start.to_le_bytes());
        end.extend(0_u16.to_le_bytes());
        self.out.write_all(&end)?;
        self.out.flush()?;
        Ok(self.out.inner)
    }
}

/// 1 January 1980: the same results are the same archive.
const DOS_DATE: u16 = 0x0021;

/// Makes a display name an entry's name: one component, no drive, no hidden file, and none of the names in `taken` (compared
/// without case, as some systems do).
pub(crate) fn entry_name(name: &str, ending: &str, taken: &mut std::collections::HashSet<String>) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_control() || "/\\:*?\"<>|".contains(c) { '_' } else { c }).collect();
    let plain = plain.trim_matches(['.', ' ']);
    let plain = if plain.is_empty() { "file" } else { plain };
    let mut candidate = format!("{plain}.{ending}");
    let mut number = 1;
    while !taken.insert(candidate.to_lowercase()) {
        number += 1;
        candidate = format!("{plain} ({number}).{ending}");
    }
    candidate
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::process::Command;

    use super::*;

    #[test]
    fn another_program_finds_in_it_what_was_put_in() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.zip");
        let large: Vec<u8> = (0..1_000_000_u32).flat_map(|n| (n % 251).to_le_bytes()).collect();
        let mut zip = ZipWriter::new(std::fs::File::create(&path).unwrap());
        zip.add("one.md", &b"# Tides"[..]).unwrap();
        zip.add("潮汐.json", &large[..]).unwrap();
        zip.add("empty", &b""[..]).unwrap();
        zip.finish().unwrap();
        let script = "import sys,zipfile,hashlib\nz=zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\n\
                      print(z.namelist(), z.read('one.md'), len(z.read('潮汐.json')), z.read('empty'))";
        let ran = Command::new("python3").args(["-X", "utf8", "-c", script]).arg(&path).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let expected = format!("['one.md', '潮汐.json', 'empty'] b'# Tides' {} b''\n", large.len());
        assert_eq!(String::from_utf8_lossy(&ran.stdout), expected);
    }

    #[test]
    fn no_entry_leads_out_of_the_folder_it_is_unpacked_in() {
        let mut taken = HashSet::new();
        let mut name = |text: &str| entry_name(text, "md", &mut taken);
        assert_eq!(name("../../etc/passwd"), "_.._etc_passwd.md");
        assert_eq!(name("C:\\x"), "C__x.md");
        assert_eq!(name("..."), "file.md");
        assert_eq!(name("a\n\0b"), "a__b.md");
        assert_eq!(name("Tides"), "Tides.md");
        assert_eq!(name("tides"), "tides (2).md");
    }
}
