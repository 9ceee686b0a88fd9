//! `shunpike cdi`: what a container engine has to do so that the programs of a container are under Shunpike, as a specification of
//! the Container Device Interface.

use crate::args::CdiAction;
use crate::error::Error;
use crate::{replace, shipped, socket, tools};
use serde_json::{Value, json};
use std::env;
use std::path::{Path, PathBuf};

/// The oldest version of the specification that has all that is used here, so that the oldest engines take it (podman 4.1).
const VERSION: &str = "0.3.0";
/// Vendor and class. Its devices are `shunpike.dev/lane=all` and `shunpike.dev/lane=musl`.
const KIND: &str = "shunpike.dev/lane";

/// Where things are in a container. The list names the library there.
mod inside {
    pub const DIRECTORY: &str = "/run/shunpike";
    pub const LIBRARY: &str = "/usr/local/lib/libshunpike.so";
    pub const COMMAND: &str = "/usr/local/bin/shunpike";
    /// Where the command looks for it.
    pub const ENTRY: &str = "/usr/local/lib/shunpike/libshunpike-entry.so";
    pub const LIST: &str = "/etc/ld.so.preload";
}

/// A list of libraries to preload for a container, as installed: beside the library, in a directory of ours.
const LIST: &str = "shunpike/container.preload";

/// Does what was asked for.
pub fn cdi(action: &CdiAction, named: Option<PathBuf>) -> Result<(), Error> {
    let CdiAction::Generate { output } = action;
    let library = shipped::library()?;
    let list = library.with_file_name(LIST);
    if !list.is_file() {
        return Err(Error::NoContainerList { path: list, library });
    }
    let entry = shipped::entry()?;
    let files = Files {
        socket: named.unwrap_or_else(|| socket::SYSTEM.into()),
        command: env::current_exe().map_err(Error::Itself)?,
        // An engine knows nothing of the directory that we are in.
        entry: std::path::absolute(&entry).unwrap_or(entry),
        library,
        list,
    };
    let text = specification(&files)?;
    match output {
        Some(path) if !is_looked_at(path) => Err(Error::CdiName(path.clone())),
        Some(path) => replace::replace(path, format!("{text}\n").as_bytes()),
        None => tools::table::print(&text),
    }
}

/// Whether engines look at a file of this name.
fn is_looked_at(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json" || extension == "yaml")
}

/// What a container is given, where the host has it.
struct Files {
    socket: PathBuf,
    library: PathBuf,
    command: PathBuf,
    entry: PathBuf,
    list: PathBuf,
}

/// One device preloads by a file, so that the image's own LD_PRELOAD stays. The other one does by a variable, as musl's loader reads no file.
/// Neither reaches static programs: those want `run --entry=syscall`, and its library is there.
fn specification(files: &Files) -> Result<String, Error> {
    let directory = files.socket.parent().unwrap_or(Path::new("/"));
    let name = text(Path::new(files.socket.file_name().unwrap_or_default()))?;
    let mount = |host: &Path, inside: &str| -> Result<Value, Error> {
        let options = ["rbind", "ro", "nosuid", "nodev"];
        Ok(json!({ "hostPath": text(host)?, "containerPath": inside, "options": options }))
    };
    let socket = format!("{}={}/{name}", socket::VARIABLE, inside::DIRECTORY);
    let preload = format!("LD_PRELOAD={}", inside::LIBRARY);
    let common = [
        // The directory, so that a restarted broker's new socket is seen too.
        mount(directory, inside::DIRECTORY)?,
        mount(&files.library, inside::LIBRARY)?,
        mount(&files.command, inside::COMMAND)?,
        mount(&files.entry, inside::ENTRY)?,
    ];
    let with_list = [&common[..], &[mount(&files.list, inside::LIST)?]].concat();
    let device = |name: &str, env: Value, mounts: &[Value]| json!({ "name": name, "containerEdits": { "env": env, "mounts": mounts } });
    let specification = json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [
            device("all", json!([socket]), &with_list),
            device("musl", json!([socket, preload]), &common),
        ],
    });
    Ok(format!("{specification:#}"))
}

/// JSON has no other text than UTF-8.
fn text(path: &Path) -> Result<&str, Error> {
    path.to_str().ok_or_else(|| Error::CdiPath(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    fn files() -> Files {
        Files {
            socket: "/srv/b/x.sock".into(),
            library: "/usr/lib/libshunpike.so".into(),
            command: "/usr/bin/shunpike".into(),
            entry: "/usr/lib/shunpike/libshunpike-entry.so".into(),
            list: "/usr/lib/shunpike/container.preload".into(),
        }
    }

    #[test]
    fn both_devices_mount_what_they_name() {
        let parsed: Value = serde_json::from_str(&specification(&files()).expect("made")).expect("JSON");
        let mut common = vec![
            ("/srv/b", "/run/shunpike"),
            ("/usr/lib/libshunpike.so", "/usr/local/lib/libshunpike.so"),
            ("/usr/bin/shunpike", "/usr/local/bin/shunpike"),
            ("/usr/lib/shunpike/libshunpike-entry.so", "/usr/local/lib/shunpike/libshunpike-entry.so"),
        ];
        let edits = |index: usize| &parsed["devices"][index]["containerEdits"];
        let mounted = |index: usize| -> Vec<(&str, &str)> {
            let mounts = edits(index)["mounts"].as_array().expect("mounts");
            assert!(mounts.iter().all(|mount| mount["options"][1] == "ro"));
            mounts
                .iter()
                .map(|mount| {
                    let path = |name: &str| mount[name].as_str().expect("a path");
                    (path("hostPath"), path("containerPath"))
                })
                .collect()
        };
        assert_eq!(
            (&parsed["devices"][0]["name"], &parsed["devices"][1]["name"]),
            (&"all".into(), &"musl".into())
        );
        assert_eq!(mounted(1), common);
        assert_eq!(
            edits(1)["env"],
            json!(["SHUNPIKE_SOCKET=/run/shunpike/x.sock", "LD_PRELOAD=/usr/local/lib/libshunpike.so",])
        );
        common.push(("/usr/lib/shunpike/container.preload", "/etc/ld.so.preload"));
        assert_eq!(mounted(0), common);
        assert_eq!(
            edits(0)["env"],
            json!(["SHUNPIKE_SOCKET=/run/shunpike/x.sock"]),
            "the image's own LD_PRELOAD stays"
        );
    }

    #[test]
    fn what_json_cannot_name_is_refused() {
        let odd = PathBuf::from(OsStr::from_bytes(b"/\xff/libshunpike.so"));
        assert!(matches!(specification(&Files { library: odd, ..files() }), Err(Error::CdiPath(_))));
    }

    #[test]
    fn engines_look_at_two_kinds_of_names() {
        assert!(is_looked_at(Path::new("/etc/cdi/shunpike.json")));
        assert!(is_looked_at(Path::new("/etc/cdi/shunpike.yaml")));
        assert!(!is_looked_at(Path::new("/etc/cdi/shunpike.yml")));
    }
}
