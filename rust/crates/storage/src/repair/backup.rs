//! The backup of a repair: copies of what it cuts off, removes or replaces, and their manifest.
//!
//! The directory is `<name>.repair-<time>`, next to the log directory. It is not inside, because Apache Kafka
//! does not start with a directory that it does not know. The copies have the paths of the originals. Of a
//! cut `.log` file only the part that is cut off is kept, as `<name>.from-<position>`. `manifest.json` has a
//! line for each action. All of it is on disk before the first change.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{Result, StorageError};
use crate::files;
use crate::files::disk;
use crate::files::metadata::time_for_name;
use crate::slice::read_at_most;
use crate::verify::Target;

use super::Action;
use super::plan::Plan;

const CHUNK: usize = 1 << 20;

/// The path of a new directory next to `dir`.
pub(super) fn beside(dir: &Path) -> Result<PathBuf> {
    let name = dir
        .file_name()
        .map_or_else(|| "log".to_owned(), |name| name.to_string_lossy().into_owned());
    let stamp = time_for_name(SystemTime::now());
    for number in 0..100 {
        let suffix = if number == 0 {
            String::new()
        } else {
            format!("-{number}")
        };
        let path = dir.with_file_name(format!("{name}.repair-{stamp}{suffix}"));
        if !path.exists() {
            return Ok(path);
        }
    }
    Err(StorageError::AlreadyExists {
        path: dir.with_file_name(format!("{name}.repair-{stamp}")),
    })
}

/// Copies everything that the plan takes away to `backup_dir`, and flushes it.
pub(super) fn keep(plan: &Plan, target: &Target, backup_dir: &Path) -> Result<()> {
    if backup_dir.starts_with(&target.path) {
        return Err(StorageError::InvalidConfig {
            name: "backup_dir",
            value: backup_dir.display().to_string(),
            reason: "it is inside the directory that is repaired; choose a directory outside",
        });
    }
    disk::create_dir_all(backup_dir).map_err(StorageError::io("create", backup_dir))?;
    if std::fs::read_dir(backup_dir).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(StorageError::AlreadyExists {
            path: backup_dir.to_path_buf(),
        });
    }
    let root = target.log_dir.as_deref().unwrap_or(&target.path);
    let mut lines = Vec::new();
    let mut dirs = vec![backup_dir.to_path_buf()];
    for action in plan.actions() {
        let relative = action.path().strip_prefix(root).unwrap_or(action.path());
        let (from, name) = match &action {
            Action::Cut { position, .. } => (*position, format!("{}.from-{position}", relative.display())),
            Action::Remove { .. } | Action::Rebuild { .. } => (0, relative.display().to_string()),
        };
        let copied = copy(action.path(), from, &backup_dir.join(&name), &mut dirs)?;
        lines.push(line(&action, copied.then_some(name.as_str())));
    }
    let text = format!(
        "{{\"directory\": {},\n \"actions\": [\n  {}\n ]}}\n",
        quote(&root.display().to_string()),
        lines.join(",\n  ")
    );
    files::replace_file(&backup_dir.join("manifest.json"), text.as_bytes())?;
    for dir in &dirs {
        files::sync_dir(dir)?;
    }
    match backup_dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => files::sync_dir(parent),
        _ => Ok(()),
    }
}

/// Copies a file from a position to its end. False when there is no such file.
fn copy(from: &Path, position: u64, to: &Path, dirs: &mut Vec<PathBuf>) -> Result<bool> {
    let source = match File::open(from) {
        Ok(source) => source,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(StorageError::io("open", from)(error)),
    };
    if let Some(parent) = to.parent()
        && !dirs.iter().any(|dir| dir == parent)
    {
        disk::create_dir_all(parent).map_err(StorageError::io("create", parent))?;
        dirs.push(parent.to_path_buf());
    }
    let target = disk::create(to).map_err(StorageError::io("create", to))?;
    let mut chunk = vec![0; CHUNK];
    let mut copied = 0;
    loop {
        let filled =
            read_at_most(&source, &mut chunk, position + copied).map_err(StorageError::io("read", from))?;
        if filled == 0 {
            break;
        }
        disk::write_all_at(&target, to, &chunk[..filled], copied).map_err(StorageError::io("write", to))?;
        copied += filled as u64;
    }
    disk::sync(&target, to).map_err(StorageError::io("fsync", to))?;
    Ok(true)
}

fn line(action: &Action, copy: Option<&str>) -> String {
    let mut fields = vec![
        format!("\"action\": {}", quote(action.name())),
        format!("\"path\": {}", quote(&action.path().display().to_string())),
        format!("\"why\": {}", quote(action.why())),
        format!("\"copy\": {}", copy.map_or("null".to_owned(), quote)),
    ];
    if let Action::Cut {
        position,
        offset,
        bytes,
        records,
        ..
    } = action
    {
        fields.push(format!(
            "\"position\": {position}, \"offset\": {offset}, \"bytes\": {bytes}, \"records\": {records}"
        ));
    }
    format!("{{{}}}", fields.join(", "))
}

/// The string as a JSON literal.
fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                out.push('\\');
                out.push(character);
            }
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", control as u32)),
            plain => out.push(plain),
        }
    }
    out.push('"');
    out
}
