//! Memory of connections, requests and responses stays within its budgets.
//!
//! The allocator counts the bytes of the whole process, so these tests run one at a time.
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../common/certificates.rs"]
mod certificates;
#[path = "../common/mod.rs"]
mod common;
mod connections;
mod decoded;
mod frames;
mod responses;
mod waiting;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::ErrorKind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Client, TestServer, batch, int, produce, produced};
use logcore_server::{ClientAuth, TlsOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const MEGABYTE: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(120);

struct Counting;

static CURRENT: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the counters are not part of any memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = CURRENT.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        CURRENT.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the memory came from `alloc` above, so from the system's allocator, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The bytes that the process allocated since this was made.
struct Allocated(usize);

impl Allocated {
    fn since_now() -> Self {
        let now = CURRENT.load(Ordering::Relaxed);
        PEAK.store(now, Ordering::Relaxed);
        Self(now)
    }

    fn peak(&self) -> usize {
        PEAK.load(Ordering::Relaxed).saturating_sub(self.0)
    }

    fn now(&self) -> usize {
        CURRENT.load(Ordering::Relaxed).saturating_sub(self.0)
    }
}

/// 8 MiB for requests of at most 2 MiB. The kernel's buffers are small, so the server cannot send what a
/// client does not read.
const LIMITS: [(&str, &str); 6] = [
    ("queued.max.request.bytes", "8388608"),
    ("socket.request.max.bytes", "2097152"),
    ("message.max.bytes", "2097152"),
    ("socket.receive.buffer.bytes", "65536"),
    ("socket.send.buffer.bytes", "65536"),
    ("socket.listen.backlog.size", "1000"),
];

fn server() -> TestServer {
    TestServer::start(&LIMITS)
}

/// Raises the soft limit of open files to the hard one, which must be at least `least`.
fn limit_files(least: u64) {
    let limit = getrlimit(Resource::Nofile);
    assert!(limit.maximum.is_none_or(|most| most >= least), "{limit:?}");
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
}

fn large_frame(client: &mut Client) -> Vec<u8> {
    let records = batch(&[&vec![b'x'; MEGABYTE]]);
    client.frame(0, 9, produce("t", 1, &[(0, &records)]))
}

fn check_served(server: &TestServer) {
    let mut client = server.client();
    let answer = client.call(0, 9, produce("t", 1, &[(1, &batch(&[b"small"]))]));
    assert_eq!(int(&produced(&answer), "error_code"), 0);
}

/// Whether the client can read something, or its connection is closed.
fn is_answered(client: &Client) -> bool {
    client.stream.set_nonblocking(true).unwrap();
    let peeked = client.stream.peek(&mut [0; 1]);
    client.stream.set_nonblocking(false).unwrap();
    peeked.map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |_| true)
}
