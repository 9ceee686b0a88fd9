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
/// Vendor and class. `shunpike.dev/lane=all` is the one device.
const KIND: &str = "shunpike.dev/lane";

/// Where things are in a container. The list names the library there.
mod inside {
    pub const DIRECTORY: &str = "/run/shunpike";
    pub const LIBRARY: &str = "/usr/local/lib/libshunpike.so";
    pub const COMMAND: &str = "/usr/local/bin/shunpike";
    pub const LIST: &str = "/etc/ld.so.preload";
}

/// A list of libraries to preload for a container, as installed: beside the library, in a directory of ours.
const LIST: &str = "shunpike/container.preload";

/// Does what was asked for.
pub fn cdi(action: &CdiAction, named: Option<PathBuf>) -> Result<(), Error> {
    let CdiAction::Generate { output } = action;
    let socket = named.unwrap_or_else(|| socket::SYSTEM.into());
    let library = shipped::library()?;
    let list = library.with_file_name(LIST);
    if !list.is_file() {
        return Err(Error::NoContainerList { path: list, library });
    }
    let command = env::current_exe().map_err(Error::Itself)?;
    let text = specification(&socket, &library, &command, &list)?;
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

fn specification(socket: &Path, library: &Path, command: &Path, list: &Path) -> Result<String, Error> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    let name = text(Path::new(socket.file_name().unwrap_or_default()))?;
    let mount = |host: &Path, inside: &str| -> Result<Value, Error> {
        let options = ["rbind", "ro", "nosuid", "nodev"];
        Ok(json!({ "hostPath": text(host)?, "containerPath": inside, "options": options }))
    };
    let specification = json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [{
            "name": "all",
            "containerEdits": {
                "env": [format!("{}={}/{name}", socket::VARIABLE, inside::DIRECTORY)],
                // The directory, so that a restarted broker's new socket is seen too.
                "mounts": [
                    mount(directory, inside::DIRECTORY)?,
                    mount(library, inside::LIBRARY)?,
                    mount(command, inside::COMMAND)?,
                    mount(list, inside::LIST)?,
                ],
            },
        }],
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

    #[test]
    fn the_specification_mounts_directory_library_command_and_list() {
        let text = specification(
            Path::new("/srv/b/x.sock"),
            Path::new("/usr/lib/libshunpike.so"),
            Path::new("/usr/bin/shunpike"),
            Path::new("/usr/lib/shunpike/container.preload"),
        );
        let parsed: Value = serde_json::from_str(&text.expect("made")).expect("JSON");
        let edits = &parsed["devices"][0]["containerEdits"];
        assert_eq!(edits["env"], json!(["SHUNPIKE_SOCKET=/run/shunpike/x.sock"]));
        let mounts: Vec<_> = edits["mounts"].as_array().expect("mounts").iter().collect();
        assert!(mounts.iter().all(|mount| mount["options"][1] == "ro"));
        let pairs = mounts.iter().map(|mount| (mount["hostPath"].as_str(), mount["containerPath"].as_str()));
        assert_eq!(
            pairs.collect::<Vec<_>>(),
            [
                (Some("/srv/b"), Some("/run/shunpike")),
                (Some("/usr/lib/libshunpike.so"), Some("/usr/local/lib/libshunpike.so")),
                (Some("/usr/bin/shunpike"), Some("/usr/local/bin/shunpike")),
                (Some("/usr/lib/shunpike/container.preload"), Some("/etc/ld.so.preload")),
            ]
        );
    }

    #[test]
    fn what_json_cannot_name_is_refused() {
        let odd = Path::new(OsStr::from_bytes(b"/\xff/libshunpike.so"));
        let usual = Path::new("/usr/bin/shunpike");
        assert!(matches!(specification(usual, odd, usual, usual), Err(Error::CdiPath(_))));
    }

    #[test]
    fn engines_look_at_two_kinds_of_names() {
        assert!(is_looked_at(Path::new("/etc/cdi/shunpike.json")));
        assert!(is_looked_at(Path::new("/etc/cdi/shunpike.yaml")));
        assert!(!is_looked_at(Path::new("/etc/cdi/shunpike.yml")));
    }
}
