//! Log lines on their way to Python's `logging`.
//!
//! A bounded queue: any thread pushes, and Python takes the lines after the wake descriptor became readable.
//! When the queue is full, the oldest lines are dropped, and the next `take` reports their number. So a flood
//! of bad connections costs no memory. Lines that clients can cause repeatedly are limited to one a minute,
//! with their number ([`LogLines::push_limited`]). A line with a client's text is always one line of bounded
//! length. A crash loses the lines that were not taken.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use logcore_wake::WakeFd;

const CAPACITY: usize = 4096;
/// The longest line or field in bytes. Text of clients may be as long as the longest request.
const LENGTH_MAX: usize = 4096;
const CUT: &str = " ... (cut)";
/// The time in which a limited line is not repeated.
const PAUSE: Duration = Duration::from_secs(60);
/// The most limited lines that are remembered. Further ones are logged each time.
const REMEMBERED_MAX: usize = 4096;

/// The level of a line, with the numbers of Python's `logging`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// No action is needed.
    Info = 20,
    /// A peer misbehaved, or a request was refused.
    Warning = 30,
    /// An operator must act.
    Error = 40,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The level.
    pub level: Level,
    /// What happened, to what, and what to do.
    pub message: String,
    /// Values for machines, by name: `connection`, `client_id`, `topic` …
    pub fields: Fields,
}

/// Names and values.
pub type Fields = Vec<(&'static str, String)>;

#[derive(Default)]
struct Queue {
    lines: VecDeque<LogLine>,
    dropped: u64,
}

/// The last time of a limited line, and how often it was suppressed since.
struct Limited {
    at: Instant,
    suppressed: u64,
}

pub(crate) struct LogLines {
    queue: Mutex<Queue>,
    limited: Mutex<HashMap<String, Limited>>,
    wake: Arc<WakeFd>,
}

impl LogLines {
    pub(crate) fn new(wake: Arc<WakeFd>) -> Self {
        Self {
            queue: Mutex::default(),
            limited: Mutex::default(),
            wake,
        }
    }

    pub(crate) fn push(&self, level: Level, message: impl Into<String>) {
        self.push_with(level, message, Fields::new());
    }

    pub(crate) fn push_with(&self, level: Level, message: impl Into<String>, fields: Fields) {
        let message = one_line(message.into());
        let fields = fields.into_iter().map(|(name, value)| (name, one_line(value)));
        let fields = fields.collect();
        let mut queue = self.queue.lock();
        if queue.lines.len() >= CAPACITY {
            queue.lines.pop_front();
            queue.dropped += 1;
        }
        queue.lines.push_back(LogLine {
            level,
            message,
            fields,
        });
        drop(queue);
        self.wake.signal();
    }

    pub(crate) fn info(&self, message: impl Into<String>) {
        self.push(Level::Info, message);
    }

    pub(crate) fn warning(&self, message: impl Into<String>) {
        self.push(Level::Warning, message);
    }

    pub(crate) fn error(&self, message: impl Into<String>) {
        self.push(Level::Error, message);
    }

    /// Pushes a line that may come often. Of lines with the same `key` one a minute is logged, with the
    /// number of suppressed ones.
    pub(crate) fn push_limited(&self, level: Level, key: &str, message: String) {
        self.push_limited_with(level, key, message, Fields::new);
    }

    /// As [`Self::push_limited`], with fields, which are made only for a line that is logged.
    pub(crate) fn push_limited_with(
        &self,
        level: Level,
        key: &str,
        message: String,
        fields: impl FnOnce() -> Fields,
    ) {
        if let Some(message) = self.limit(key, message, Instant::now()) {
            self.push_with(level, message, fields());
        }
    }

    /// The text of a limited line at `now`, unless it is suppressed.
    fn limit(&self, key: &str, message: String, now: Instant) -> Option<String> {
        let mut limited = self.limited.lock();
        if let Some(last) = limited.get_mut(key) {
            if now < last.at + PAUSE {
                last.suppressed += 1;
                return None;
            }
            let suppressed = std::mem::take(&mut last.suppressed);
            let seconds = (now - last.at).as_secs();
            last.at = now;
            return Some(match suppressed {
                0 => message,
                more => format!("{message} (and {more} times more in the last {seconds} s)"),
            });
        }
        if limited.len() >= REMEMBERED_MAX {
            limited.retain(|_, last| now < last.at + PAUSE);
        }
        if limited.len() < REMEMBERED_MAX {
            let first = Limited {
                at: now,
                suppressed: 0,
            };
            limited.insert(key.to_owned(), first);
        }
        Some(message)
    }

    pub(crate) fn take(&self) -> Vec<LogLine> {
        let queue = std::mem::take(&mut *self.queue.lock());
        let mut lines: Vec<LogLine> = queue.lines.into();
        if queue.dropped > 0 {
            lines.push(LogLine {
                level: Level::Warning,
                message: format!(
                    "{} older log lines were dropped: they came faster than they were read",
                    queue.dropped
                ),
                fields: Fields::new(),
            });
        }
        lines
    }
}

/// The text as one line: characters that end a line or change its direction are escaped, and a long text is
/// cut. So a client cannot forge lines of the log.
fn one_line(text: String) -> String {
    if text.len() <= LENGTH_MAX && !text.contains(breaks_line) {
        return text;
    }
    let mut line = String::with_capacity(text.len().min(LENGTH_MAX));
    for character in text.chars() {
        if line.len() + character.len_utf8() > LENGTH_MAX {
            line.push_str(CUT);
            break;
        }
        if breaks_line(character) {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

/// Control characters, and Unicode's line separators and overrides of direction.
fn breaks_line(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this failed, a client could forge lines of the log, or write one of any length.
    #[test]
    fn a_line_is_one_line_of_bounded_length() {
        let lines = LogLines::new(Arc::new(WakeFd::new().unwrap()));
        let forged = "no topic a\nERROR disk failed\r\u{1b}[2J\u{85}\u{2028}\u{202e}é";
        let long = "é".repeat(LENGTH_MAX);
        let fields = vec![("client_id", forged.to_owned()), ("topic", long.clone())];
        lines.push_with(Level::Warning, forged, fields);
        lines.push_limited(Level::Warning, "long", long);
        let [first, second] = &lines.take()[..] else {
            panic!("two lines were pushed");
        };
        let escaped = r"no topic a\nERROR disk failed\r\u{1b}[2J\u{85}\u{2028}\u{202e}é";
        assert_eq!(first.message, escaped);
        assert_eq!(first.fields[0].1, escaped);
        let cut = "é".repeat(LENGTH_MAX / 2) + CUT;
        assert_eq!(first.fields[1].1, cut);
        assert_eq!(second.message, cut);
    }

    // If this failed, a client that tries again and again would fill the disk with one line, or the log would
    // not show that it goes on.
    #[test]
    fn repeated_lines_are_limited_and_counted() {
        let lines = LogLines::new(Arc::new(WakeFd::new().unwrap()));
        let start = Instant::now();
        let logged =
            |key: &str, seconds| lines.limit(key, "no".to_owned(), start + Duration::from_secs(seconds));
        assert_eq!(logged("a", 0).unwrap(), "no");
        assert_eq!(logged("b", 0).unwrap(), "no");
        for _ in 0..1045 {
            assert_eq!(logged("a", 59), None);
        }
        assert_eq!(
            logged("a", 75).unwrap(),
            "no (and 1045 times more in the last 75 s)"
        );
        assert_eq!(logged("a", 76), None);
        for number in 0..2 * REMEMBERED_MAX {
            assert!(logged(&number.to_string(), 76).is_some());
        }
        assert_eq!(lines.limited.lock().len(), REMEMBERED_MAX);
        assert_eq!(logged("b", 200).unwrap(), "no");
    }

    // If this failed, a peer that sends garbage in a loop would fill the broker's memory with log lines, or a
    // drop of lines would go unnoticed.
    #[test]
    fn the_queue_is_bounded_and_reports_dropped_lines() {
        let lines = LogLines::new(Arc::new(WakeFd::new().unwrap()));
        for number in 0..CAPACITY + 3 {
            lines.info(number.to_string());
        }
        let taken = lines.take();
        assert_eq!(taken.len(), CAPACITY + 1);
        assert_eq!(taken[0].message, "3");
        assert!(taken[CAPACITY].message.starts_with("3 older"));
        assert!(lines.take().is_empty());
    }
}
