//! Binding of `logcore-quorum`: one member of an ensemble for Python.
//!
//! Calls that may block release the GIL; all others return at once. Events are tuples whose first item names
//! their kind.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use logcore_quorum::files::OpenError;
use logcore_quorum::files::snapshots::SnapshotSource;
use logcore_quorum::files::stored::Stored;
use logcore_quorum::host::{Event, FIRST_STATE, Host, HostError, Options, Role, RoleKind, SnapshotSink};
use logcore_quorum::raft::member::Timing;
use logcore_quorum::raft::members::listed;
use logcore_quorum::raft::types::Membership;
use logcore_quorum::reader::DeliveredEntry;
use logcore_quorum::servers::{Address, Server, server_of};
use parking_lot::Mutex;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::errors::{corrupt_error, storage_error};

create_exception!(
    logcore,
    QuorumError,
    PyException,
    "A member of an ensemble refused a call, or failed."
);
create_exception!(
    logcore,
    QuorumFullError,
    QuorumError,
    "Too much waits already; nothing of the call was taken."
);
create_exception!(
    logcore,
    QuorumStoppedError,
    QuorumError,
    "The member was not started, has stopped or failed, or belongs to the process that this one was forked \
     from."
);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("QuorumError", py.get_type::<QuorumError>())?;
    module.add("QuorumFullError", py.get_type::<QuorumFullError>())?;
    module.add("QuorumStoppedError", py.get_type::<QuorumStoppedError>())?;
    module.add("FIRST_STATE", FIRST_STATE)?;
    module.add_class::<PyQuorum>()?;
    module.add_class::<PyMemberFiles>()?;
    module.add_class::<PySnapshotSink>()?;
    module.add_class::<PySnapshotSource>()?;
    Ok(())
}

/// The exception for an error of the crate. There is no catch-all arm, so a new variant needs a class.
fn raise(py: Python<'_>, error: HostError) -> PyErr {
    let text = error.to_string();
    match error {
        HostError::Open(OpenError::Storage(error)) => storage_error(py, &error),
        HostError::Open(OpenError::Corrupt { .. }) => corrupt_error(py, text),
        HostError::Open(OpenError::WrongServer { .. } | OpenError::NoMember { .. })
        | HostError::Servers(_)
        | HostError::Os { .. } => QuorumError::new_err(text),
        HostError::Full(_) | HostError::Busy { .. } => QuorumFullError::new_err(text),
        HostError::TooLarge { .. } | HostError::OutOfOrder(_) => PyValueError::new_err(text),
        HostError::Stopped(_) => QuorumStoppedError::new_err(text),
    }
}

/// Server id, host, quorum port, election port, the clients' `[host:]port` or "", observer.
type PyServer = (u16, String, u16, u16, String, bool);

fn server((id, host, quorum, election, client, observer): PyServer) -> PyResult<Server> {
    let at = |port| {
        vec![Address {
            host: host.clone(),
            port,
        }]
    };
    let client = match client.as_str() {
        "" => None,
        text => Some(client_address(text).ok_or_else(|| {
            PyValueError::new_err(format!(
                "server {id}: the clients' address {text:?} is not [host:]port"
            ))
        })?),
    };
    Ok(Server {
        id,
        quorum: at(quorum),
        election: at(election),
        client,
        observer,
    })
}

fn client_address(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (host.len() <= 255).then(|| Address {
        host: host.to_owned(),
        port,
    })
}

fn py_server(server: &Server) -> PyServer {
    let first = |addresses: &[Address]| {
        let address = addresses.first();
        address.map_or((String::new(), 0), |at| (at.host.clone(), at.port))
    };
    let (host, quorum) = first(&server.quorum);
    let (_, election) = first(&server.election);
    let client = server.client.as_ref().map_or(String::new(), |at| {
        match (at.host.as_str(), at.host.contains(':')) {
            ("", _) => at.port.to_string(),
            (host, true) => format!("[{host}]:{}", at.port),
            (host, false) => format!("{host}:{}", at.port),
        }
    });
    (server.id, host, quorum, election, client, server.observer)
}

/// The listed servers; `None` while they change.
fn members(membership: &Membership) -> Option<Vec<PyServer>> {
    let servers = listed(membership)?;
    Some(servers.iter().map(py_server).collect())
}

fn role_name(role: Role) -> &'static str {
    match role.kind {
        RoleKind::Leader => "leader",
        RoleKind::Follower => "follower",
        RoleKind::Observer => "observer",
        RoleKind::Looking => "looking",
    }
}

fn entry_to_py<'py>(py: Python<'py>, entry: &DeliveredEntry) -> PyResult<Bound<'py, PyAny>> {
    let commands = PyList::empty(py);
    for counted in &entry.commands {
        let command = &counted.command;
        let body = PyBytes::new(py, &command.body);
        commands.append((counted.mine, command.ticket, body))?;
    }
    let members = entry.membership.as_ref().and_then(members);
    let (index, term) = (entry.log_id.index, entry.log_id.leader_id.term);
    let entry = (index, term, entry.time_ms, commands, members);
    Ok(entry.into_pyobject(py)?.into_any())
}

fn event_to_py(py: Python<'_>, event: Event) -> PyResult<Bound<'_, PyAny>> {
    let event = match event {
        Event::Entries(entries) => {
            let list = PyList::empty(py);
            for entry in &entries {
                list.append(entry_to_py(py, entry)?)?;
            }
            ("entries", list).into_pyobject(py)?
        }
        Event::Install { source, my_next } => {
            let source = Py::new(py, PySnapshotSource(source))?;
            ("install", source, my_next).into_pyobject(py)?
        }
        Event::Role(role) => {
            let name = role_name(role);
            ("role", name, role.term, role.leader, role.in_contact).into_pyobject(py)?
        }
        Event::Leading { term } => ("leading", term).into_pyobject(py)?,
        Event::SessionsRenewed { server, sessions } => {
            ("renewed", server, PyBytes::new(py, &sessions)).into_pyobject(py)?
        }
        Event::RenewalAck { round } => ("renewal_ack", round).into_pyobject(py)?,
        Event::Barrier { number, ok } => ("barrier", number, ok).into_pyobject(py)?,
        Event::Snapshot { index, error } => ("snapshot", index, error).into_pyobject(py)?,
        Event::Flushed(flushes) => {
            let list = PyList::empty(py);
            for flush in &flushes {
                let written = flush.entries.iter();
                let entries =
                    written.map(|each| (each.commands, each.time_ms, each.appended_ms, each.on_disk_ms));
                list.append((flush.took.as_millis() as u64, entries.collect::<Vec<_>>()))?;
            }
            ("flushed", list).into_pyobject(py)?
        }
        Event::Warning(text) => ("warning", text).into_pyobject(py)?,
        Event::Failed(text) => ("failed", text).into_pyobject(py)?,
    };
    Ok(event.into_any())
}

#[pyclass(frozen, name = "Quorum", module = "logcore._native")]
struct PyQuorum(Arc<Host>);

#[pymethods]
impl PyQuorum {
    #[expect(clippy::too_many_arguments, reason = "one for each setting")]
    #[new]
    #[pyo3(signature = (
        *, data_dir, server_id, servers, tick_ms, init_limit, sync_limit, listen_on_all = false,
        entries_kept = 10_000, reconfigurable = false, has_state = false
    ))]
    fn new(
        py: Python<'_>,
        data_dir: String,
        server_id: u16,
        servers: Vec<PyServer>,
        tick_ms: u32,
        init_limit: u32,
        sync_limit: u32,
        listen_on_all: bool,
        entries_kept: u64,
        reconfigurable: bool,
        has_state: bool,
    ) -> PyResult<Self> {
        for (name, value) in [
            ("tick_ms", tick_ms),
            ("init_limit", init_limit),
            ("sync_limit", sync_limit),
        ] {
            if value == 0 {
                return Err(PyValueError::new_err(format!("{name} is 0; it is 1 or more")));
            }
        }
        let ticks = |limit: u32| Duration::from_millis(u64::from(limit) * u64::from(tick_ms));
        let options = Options {
            data_dir: data_dir.into(),
            server_id,
            servers: servers.into_iter().map(server).collect::<PyResult<_>>()?,
            timing: Timing {
                snapshot: ticks(init_limit).as_millis() as u64,
                ..Timing::default()
            },
            sync_limit: ticks(sync_limit),
            absence_limit: ticks(init_limit),
            has_state,
            reconfigurable,
            entries_kept,
            listen_on_all,
        };
        let opened = py.detach(|| Host::open(options));
        let host = opened.map_err(|error| raise(py, error))?;
        Ok(Self(Arc::new(host)))
    }

    #[getter]
    fn wake_fd(&self) -> i32 {
        self.0.wake_fd()
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.start()).map_err(|error| raise(py, error))
    }

    fn propose(&self, py: Python<'_>, commands: Vec<PyBackedBytes>) -> PyResult<u64> {
        let commands = commands.iter().map(|command| Bytes::copy_from_slice(command));
        let proposed = self.0.propose(commands.collect());
        proposed.map_err(|error| raise(py, error))
    }

    fn take<'py>(&self, py: Python<'py>, max_bytes: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let taken = self.0.take(max_bytes).map_err(|error| raise(py, error))?;
        taken.into_iter().map(|event| event_to_py(py, event)).collect()
    }

    fn set_wake_interval(&self, py: Python<'_>, milliseconds: u64) -> PyResult<()> {
        let interval = Duration::from_millis(milliseconds);
        let set = self.0.set_wake_interval(interval);
        set.map_err(|error| raise(py, error))
    }

    fn applied(&self, py: Python<'_>, index: u64) -> PyResult<()> {
        self.0.applied(index).map_err(|error| raise(py, error))
    }

    fn read_barrier(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.read_barrier().map_err(|error| raise(py, error))
    }

    fn renew_sessions(&self, py: Python<'_>, sessions: PyBackedBytes) -> PyResult<u64> {
        let sent = self.0.renew_sessions(Bytes::copy_from_slice(&sessions));
        sent.map_err(|error| raise(py, error))
    }

    fn has_quorum(&self, py: Python<'_>, servers: Vec<PyServer>) -> PyResult<bool> {
        let servers: Vec<_> = servers.into_iter().map(server).collect::<PyResult<_>>()?;
        self.0.has_quorum(&servers).map_err(|error| raise(py, error))
    }

    fn change_members(&self, py: Python<'_>, term: u64, servers: Vec<PyServer>) -> PyResult<()> {
        let servers = servers.into_iter().map(server).collect::<PyResult<_>>()?;
        let asked = self.0.change_members(term, servers);
        asked.map_err(|error| raise(py, error))
    }

    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let status = self.0.status().map_err(|error| raise(py, error))?;
        let dict = PyDict::new(py);
        dict.set_item("role", role_name(status.role))?;
        dict.set_item("term", status.role.term)?;
        dict.set_item("leader", status.role.leader)?;
        dict.set_item("in_contact", status.role.in_contact)?;
        dict.set_item("server_id", server_of(status.member))?;
        dict.set_item("member_id", status.member)?;
        dict.set_item("ensemble", PyBytes::new(py, &status.ensemble))?;
        let known = status.membership.as_ref();
        dict.set_item("members", known.and_then(|known| members(known.membership())))?;
        dict.set_item("last_index", status.last_index)?;
        dict.set_item("committed", status.committed)?;
        dict.set_item("applied", status.applied)?;
        dict.set_item("snapshot", status.snapshot)?;
        dict.set_item("purged", status.purged)?;
        let ack = status.quorum_ack.map(|ago| ago.as_millis() as u64);
        dict.set_item("quorum_ack_ms", ack)?;
        dict.set_item("outstanding", status.outstanding)?;
        dict.set_item("refused", status.refused)?;
        dict.set_item("last_refused", status.last_refused)?;
        Ok(dict)
    }

    fn snapshot_begin(&self, py: Python<'_>, index: u64) -> PyResult<PySnapshotSink> {
        let begun = self.0.snapshot_begin(index);
        let sink = begun.map_err(|error| raise(py, error))?;
        Ok(PySnapshotSink(Mutex::new(sink)))
    }

    #[getter]
    fn awaits_state(&self) -> bool {
        self.0.awaits_state()
    }

    fn first_state(&self, py: Python<'_>) -> PyResult<PySnapshotSink> {
        let begun = self.0.first_state();
        let sink = begun.map_err(|error| raise(py, error))?;
        Ok(PySnapshotSink(Mutex::new(sink)))
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.stop()).map_err(|error| raise(py, error))
    }

    fn __repr__(&self) -> String {
        match self.0.status() {
            Ok(status) => format!(
                "<Quorum of server {}: {} of term {}>",
                server_of(status.member),
                role_name(status.role),
                status.role.term
            ),
            Err(error) => format!("<Quorum: {error}>"),
        }
    }
}

#[pyclass(frozen, name = "MemberFiles", module = "logcore._native")]
struct PyMemberFiles(Mutex<Option<Stored>>);

impl PyMemberFiles {
    fn with<T>(&self, work: impl FnOnce(&mut Stored) -> std::io::Result<T>) -> PyResult<T> {
        match &mut *self.0.lock() {
            Some(stored) => Ok(work(stored)?),
            None => Err(PyValueError::new_err("the member's files are closed")),
        }
    }
}

#[pymethods]
impl PyMemberFiles {
    #[new]
    fn new(py: Python<'_>, data_dir: std::path::PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| Stored::open(&data_dir));
        let stored = opened.map_err(|error| raise(py, error.into()))?;
        Ok(Self(Mutex::new(Some(stored))))
    }

    fn snapshot(&self, py: Python<'_>) -> PyResult<Option<PySnapshotSource>> {
        let source = py.detach(|| self.with(|stored| stored.snapshot()))?;
        Ok(source.map(PySnapshotSource))
    }

    fn entries<'py>(&self, py: Python<'py>, max_bytes: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let entries = py.detach(|| self.with(|stored| stored.entries(max_bytes)))?;
        entries.iter().map(|entry| entry_to_py(py, entry)).collect()
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| self.0.lock().take().map_or(Ok(()), Stored::close));
        closed.map_err(|error| raise(py, error.into()))
    }
}

#[pyclass(frozen, name = "SnapshotSink", module = "logcore._native")]
struct PySnapshotSink(Mutex<SnapshotSink>);

#[pymethods]
impl PySnapshotSink {
    fn write(&self, py: Python<'_>, data: PyBackedBytes) -> PyResult<bool> {
        let written = self.0.lock().write(Bytes::copy_from_slice(&data));
        written.map_err(|error| raise(py, error))
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let finished = self.0.lock().finish();
        finished.map_err(|error| raise(py, error))
    }

    fn abort(&self) {
        self.0.lock().abort();
    }
}

#[pyclass(frozen, name = "SnapshotSource", module = "logcore._native")]
struct PySnapshotSource(SnapshotSource);

#[pymethods]
impl PySnapshotSource {
    #[getter]
    fn index(&self) -> u64 {
        self.0.log_id.index
    }

    #[getter]
    fn term(&self) -> u64 {
        self.0.log_id.leader_id.term
    }

    fn read<'py>(&self, py: Python<'py>, max: usize) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.0.read(max))?;
        Ok(PyBytes::new(py, &bytes))
    }
}
