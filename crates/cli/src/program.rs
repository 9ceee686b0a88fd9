//! Whether a program can be preloaded: found as exec finds it, and looked into as the kernel does.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Scripts whose interpreter is a script: the kernel follows this many.
const SCRIPTS: usize = 5;

/// Why a program would ignore the preloaded library.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// It has no dynamic loader.
    Static,
    /// It is of another architecture.
    OtherMachine,
    /// It runs with more rights than its caller, so the loader ignores LD_PRELOAD.
    Privileged,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::Static => "is statically linked",
            Obstacle::OtherMachine => "is built for another architecture",
            Obstacle::Privileged => "runs with other rights than yours (setuid, setgid or capabilities)",
        })
    }
}

/// The file that exec would run for `command`: itself if it has a slash, else the first in PATH.
pub fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    // Without PATH, as execvp(3).
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    env::split_paths(&path).map(|dir| dir.join(command)).find(|file| is_executable(file))
}

/// What keeps the library out of the program in `file`; `None` if nothing, or if `file` cannot be read.
pub fn obstacle(file: &Path) -> Option<Obstacle> {
    let interpreter = behind_scripts(file.to_owned()).ok()?;
    if is_privileged(&interpreter) {
        return Some(Obstacle::Privileged);
    }
    let program = Elf::read(&interpreter).ok().flatten()?;
    let ours = Elf::read(Path::new("/proc/self/exe")).ok().flatten()?;
    if (program.class, program.machine) != (ours.class, ours.machine) {
        return Some(Obstacle::OtherMachine);
    }
    program.loader.is_none().then_some(Obstacle::Static)
}

/// Whether it is an ELF file, of whatever machine, and however broken.
pub fn is_elf(file: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(file).and_then(|mut file| file.read_exact(&mut magic)).is_ok_and(|()| magic == *b"\x7fELF")
}

/// The dynamic loader that an ELF program names.
pub fn loader(file: &Path) -> Option<PathBuf> {
    let loader = Elf::read(file).ok()??.loader?;
    Some(OsStr::from_bytes(loader.strip_suffix(b"\0").unwrap_or(&loader)).into())
}

/// Whether it is a Go program, by the section that Go's linker writes.
pub fn is_go(file: &Path) -> bool {
    sections(file).is_ok_and(|names| names.split(|byte| *byte == 0).any(|name| name == b".go.buildinfo"))
}

/// Whether it is a program of musl, whose loader reads LD_PRELOAD and no file.
pub fn is_musl(file: &Path) -> bool {
    let loader = Elf::read(file).ok().flatten().and_then(|elf| elf.loader).unwrap_or_default();
    loader.windows(8).any(|part| part == b"/ld-musl")
}

/// The names of an ELF file's sections, as they lie in it.
fn sections(file: &Path) -> io::Result<Vec<u8>> {
    let mut file = open_regular(file)?;
    let mut header = [0; 64];
    file.read_exact(&mut header)?;
    if header[..5] != *b"\x7fELF\x02" {
        return Ok(Vec::new());
    }
    let (table, size) = (u64_at(&header, 40), u64::from(u16_at(&header, 58)));
    let of_names = u64::from(u16_at(&header, 62));
    let mut entry = [0; 64];
    file.seek(SeekFrom::Start(table.saturating_add(of_names * size)))?;
    file.read_exact(&mut entry)?;
    let mut names = Vec::new();
    file.seek(SeekFrom::Start(u64_at(&entry, 24)))?;
    file.take(u64_at(&entry, 32).min(1 << 16)).read_to_end(&mut names)?;
    Ok(names)
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The program that is executed for `file`: itself, or a script's interpreter.
pub fn executed(file: &Path) -> PathBuf {
    behind_scripts(file.to_owned()).unwrap_or_else(|_| file.to_owned())
}

fn behind_scripts(mut file: PathBuf) -> io::Result<PathBuf> {
    for _ in 0..SCRIPTS {
        let Some(name) = interpreter(&file)? else { break };
        file = OsStr::from_bytes(&name).into();
    }
    Ok(file)
}

/// The interpreter that a script names, as the kernel reads the line: a carriage return before its end belongs to the name.
fn interpreter(script: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut start = Vec::new();
    open_regular(script)?.take(256).read_to_end(&mut start)?;
    let Some(line) = start.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let is_blank = |byte: &u8| b" \t".contains(byte);
    Ok(line.split(is_blank).find(|word| !word.is_empty()).map(<[u8]>::to_vec))
}

/// What a program needs that is not there, so that exec says of the program itself that it is not found.
#[derive(Debug)]
pub enum Missing {
    /// The program that its first line names;
    Interpreter { of: PathBuf, name: String },
    /// Its first line ends as lines end on other systems.
    CarriageReturn { of: PathBuf },
    /// The dynamic loader.
    Loader { of: PathBuf, name: String },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Interpreter { of, name } => write!(
                f,
                "its interpreter '{name}' is not found; correct the first line of {}, or install what it names",
                of.display()
            ),
            Missing::CarriageReturn { of } => write!(
                f,
                "the first line of {0} ends with a carriage return, which the kernel takes for a part of the interpreter's name; \
                 convert the file, as with 'sed -i \"s/\\r$//\" {0}'",
                of.display()
            ),
            Missing::Loader { of, name } => write!(
                f,
                "the dynamic loader '{name}' of {} is not found; is it built for another system?",
                of.display()
            ),
        }
    }
}

/// What the program in `file` needs and lacks, as far as it can be read.
pub fn missing(file: &Path) -> Option<Missing> {
    let mut file = file.to_owned();
    for _ in 0..SCRIPTS {
        let Some(name) = interpreter(&file).ok()? else { break };
        let next = PathBuf::from(OsStr::from_bytes(&name));
        if !next.exists() {
            let name = String::from_utf8_lossy(&name).into_owned();
            let of = file;
            return Some(match name.strip_suffix('\r') {
                Some(_) => Missing::CarriageReturn { of },
                None => Missing::Interpreter { of, name },
            });
        }
        file = next;
    }
    let loader = loader(&file)?;
    (!loader.exists()).then(|| Missing::Loader { of: file, name: loader.to_string_lossy().into_owned() })
}

/// Opens a file to look into it. What is no ordinary file cannot be executed either, and a pipe would have us wait for a writer.
pub fn open_regular(file: &Path) -> io::Result<File> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(file)?;
    if opened.metadata()?.is_file() { Ok(opened) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

fn is_privileged(file: &Path) -> bool {
    let Ok(meta) = fs::metadata(file) else { return false };
    let mode = meta.permissions().mode();
    let uid = rustix::process::getuid().as_raw();
    let setuid = mode & 0o4000 != 0 && meta.uid() != uid;
    // Without the group's execute bit, set-group-ID means something else.
    let setgid = mode & 0o2010 == 0o2010 && meta.gid() != rustix::process::getgid().as_raw();
    let mut capabilities = [0u8; 64];
    let capable = uid != 0 && rustix::fs::getxattr(file, "security.capability", &mut capabilities).is_ok();
    setuid || setgid || capable
}

/// What matters of an ELF file.
struct Elf {
    class: u8,
    machine: u16,
    /// PT_INTERP: the dynamic loader's path.
    loader: Option<Vec<u8>>,
}

impl Elf {
    /// `None` if `path` is no ELF file, or of the other byte order or class than a header we can read.
    fn read(path: &Path) -> io::Result<Option<Self>> {
        const PT_INTERP: u32 = 3;
        let mut file = open_regular(path)?;
        let mut header = [0; 64];
        if file.read_exact(&mut header).is_err() || header[..4] != *b"\x7fELF" {
            return Ok(None);
        }
        let (class, machine) = (header[4], u16::from_ne_bytes([header[18], header[19]]));
        if class != 2 {
            return Ok(Some(Self { class, machine, loader: None }));
        }
        let table = u64_at(&header, 32);
        let (size, count) = (u16_at(&header, 54), u16_at(&header, 56));
        for index in 0..u64::from(count) {
            let mut entry = [0; 56];
            file.seek(SeekFrom::Start(table.saturating_add(index * u64::from(size))))?;
            file.read_exact(&mut entry)?;
            if entry[..4] == PT_INTERP.to_ne_bytes() {
                let mut loader = Vec::new();
                file.seek(SeekFrom::Start(u64_at(&entry, 8)))?;
                file.take(u64_at(&entry, 32).min(4096)).read_to_end(&mut loader)?;
                return Ok(Some(Self { class, machine, loader: Some(loader) }));
            }
        }
        Ok(Some(Self { class, machine, loader: None }))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executable(directory: &Path, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, content).expect("file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
        path
    }

    /// An ELF header, and one program header of type `kind`, whose content is `loader`.
    fn elf(class: u8, machine: u16, kind: u32, loader: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 120];
        bytes[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
        bytes[18..20].copy_from_slice(&machine.to_ne_bytes());
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64..68].copy_from_slice(&kind.to_ne_bytes());
        bytes[72] = 120;
        bytes[96] = loader.len() as u8;
        bytes.extend(loader);
        bytes
    }

    #[test]
    fn obstacles_are_seen() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let ours = Elf::read(Path::new("/proc/self/exe")).expect("readable").expect("an ELF file");
        let case = |bytes: Vec<u8>| obstacle(&executable(dir.path(), "program", &bytes, 0o755));
        assert_eq!(case(elf(ours.class, ours.machine, 3, b"/lib64/ld-linux-x86-64.so.2\0")), None);
        assert_eq!(case(elf(ours.class, ours.machine, 1, b"")), Some(Obstacle::Static));
        assert_eq!(case(elf(ours.class, ours.machine, 3, b"/lib/ld-musl-x86_64.so.1\0")), None);
        assert_eq!(case(elf(ours.class, ours.machine + 1, 3, b"/lib/ld\0")), Some(Obstacle::OtherMachine));
        assert_eq!(case(elf(1, 3, 3, b"/lib/ld\0")), Some(Obstacle::OtherMachine));
        assert_eq!(case(b"neither ELF nor script".to_vec()), None);
        assert_eq!(case(elf(ours.class, ours.machine, 3, b"/lib/ld\0")[..100].to_vec()), None, "cut off");
    }

    #[test]
    fn musl_is_known_by_its_loader() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let with = |loader: &[u8]| is_musl(&executable(dir.path(), "program", &elf(2, 62, 3, loader), 0o755));
        assert!(with(b"/lib/ld-musl-x86_64.so.1\0"));
        assert!(!with(b"/lib64/ld-linux-x86-64.so.2\0") && !with(b""));
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let ours = Elf::read(Path::new("/proc/self/exe")).expect("readable").expect("an ELF file");
        let program = executable(dir.path(), "program", &elf(ours.class, ours.machine, 1, b""), 0o755);
        let line = format!("#! {} -x\nmore\n", program.display());
        let script = executable(dir.path(), "script", line.as_bytes(), 0o755);
        assert_eq!(obstacle(&script), Some(Obstacle::Static));
        let endless = format!("#!{}/endless\n", dir.path().display());
        assert_eq!(obstacle(&executable(dir.path(), "endless", endless.as_bytes(), 0o755)), None);
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o755),
            0,
        )
        .expect("a FIFO");
        assert_eq!(obstacle(&fifo), None);
        let line = format!("#!{}\n", fifo.display());
        assert_eq!(obstacle(&executable(dir.path(), "script", line.as_bytes(), 0o755)), None);
    }

    #[test]
    fn setuid_counts_for_somebody_elses_program() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let own = executable(dir.path(), "own", b"", 0o4755);
        assert!(!is_privileged(&own), "setuid to ourselves gives nothing");
        // Only root can give a file away.
        if rustix::process::getuid().is_root() {
            std::os::unix::fs::chown(&own, Some(1), None).expect("chown");
            fs::set_permissions(&own, fs::Permissions::from_mode(0o4755)).expect("mode");
            assert_eq!(obstacle(&own), Some(Obstacle::Privileged));
        }
    }

    #[test]
    fn names_are_looked_up_as_exec_does() {
        assert_eq!(find(OsStr::new("./x")), Some("./x".into()));
        assert_eq!(find(OsStr::new("no-such-program-anywhere")), None);
        assert!(find(OsStr::new("sh")).is_some_and(|file| file.is_absolute()));
    }
}
