//! Log lines on their way to Python's `logging`.
//!
//! A bounded queue: any thread pushes, Python drains it with `take` after the wake descriptor became readable. When nobody
//! drains it, the oldest lines are dropped and their number is told with the next drain; a flood of bad connections costs
//! no memory. What clients can bring about again and again is said once and then at most once a minute, with its number
//! ([`LogLines::seldom`]). Whatever client's text is in it, a line is one line, and not a long one. A crash loses the lines
//! that were not taken.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use logcore_wake::WakeFd;

/// How many lines may wait.
const CAPACITY: usize = 4096;
/// How long a line, or a value beside it, may be in bytes: what clients send may be as long as the largest request.
const LENGTH_MAX: usize = 4096;
/// What stands for the rest of a longer one.
const CUT: &str = " ... (cut)";
/// How long a line that came is not repeated.
const PAUSE: Duration = Duration::from_secs(60);
/// How many different lines are remembered for that; what does not fit is said each time.
const REMEMBERED_MAX: usize = 4096;

/// How bad it is; the numbers are those of Python's `logging`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something worth knowing that needs no action.
    Info = 20,
    /// A peer misbehaved or something was refused.
    Warning = 30,
    /// An operator has to act.
    Error = 40,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// How bad it is.
    pub level: Level,
    /// What happened, to what, and what to do.
    pub message: String,
    /// What in it a machine may look for, by name: `connection`, `client_id`, `topic` and the like.
    pub fields: Fields,
}

/// Names and values.
pub type Fields = Vec<(&'static str, String)>;

#[derive(Default)]
struct Queue {
    lines: VecDeque<LogLine>,
    dropped: u64,
}

/// A line that was said, and how often it would have been since.
struct Said {
    at: Instant,
    kept_back: u64,
}

/// The queue.
pub(crate) struct LogLines {
    queue: Mutex<Queue>,
    said: Mutex<HashMap<String, Said>>,
    wake: Arc<WakeFd>,
}

impl LogLines {
    pub(crate) fn new(wake: Arc<WakeFd>) -> Self {
        Self {
            queue: Mutex::default(),
            said: Mutex::default(),
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

    /// A line that may come often: of those with one `key` the first is said, and then one a minute with the number of
    /// those that were not.
    pub(crate) fn seldom(&self, level: Level, key: &str, message: String) {
        self.seldom_with(level, key, message, Fields::new);
    }

    /// The same with fields, made only for a line that is said.
    pub(crate) fn seldom_with(
        &self,
        level: Level,
        key: &str,
        message: String,
        fields: impl FnOnce() -> Fields,
    ) {
        if let Some(message) = self.said_now(key, message, Instant::now()) {
            self.push_with(level, message, fields());
        }
    }

    /// The line as it is to be said at `now`, if it is.
    fn said_now(&self, key: &str, message: String, now: Instant) -> Option<String> {
        let mut said = self.said.lock();
        if let Some(last) = said.get_mut(key) {
            if now < last.at + PAUSE {
                last.kept_back += 1;
                return None;
            }
            let kept_back = std::mem::take(&mut last.kept_back);
            let seconds = (now - last.at).as_secs();
            last.at = now;
            return Some(match kept_back {
                0 => message,
                more => format!("{message} (and {more} times more in the last {seconds} s)"),
            });
        }
        if said.len() >= REMEMBERED_MAX {
            said.retain(|_, last| now < last.at + PAUSE);
        }
        if said.len() < REMEMBERED_MAX {
            let first = Said {
                at: now,
                kept_back: 0,
            };
            said.insert(key.to_owned(), first);
        }
        Some(message)
    }

    /// Every line that waits, oldest first.
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

/// The text without what ends a line or turns its direction, and cut where it gets too long: nobody who sends text to a
/// server writes lines of its log.
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

/// Control characters, and Unicode's separators of lines and overrides of direction.
fn breaks_line(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this failed, a client could write lines of its own into the log, or one of any length.
    #[test]
    fn a_line_is_one_line_and_not_long() {
        let lines = LogLines::new(Arc::new(WakeFd::new().unwrap()));
        let forged = "no topic a\nERROR disk failed\r\u{1b}[2J\u{85}\u{2028}\u{202e}é";
        let long = "é".repeat(LENGTH_MAX);
        let fields = vec![("client_id", forged.to_owned()), ("topic", long.clone())];
        lines.push_with(Level::Warning, forged, fields);
        lines.seldom(Level::Warning, "long", long);
        let [first, second] = &lines.take()[..] else {
            panic!("two lines were said");
        };
        let escaped = r"no topic a\nERROR disk failed\r\u{1b}[2J\u{85}\u{2028}\u{202e}é";
        assert_eq!(first.message, escaped);
        assert_eq!(first.fields[0].1, escaped);
        let cut = "é".repeat(LENGTH_MAX / 2) + CUT;
        assert_eq!(first.fields[1].1, cut);
        assert_eq!(second.message, cut);
    }

    // If this failed, a client that tries again and again would fill the disk with one line, or nobody would hear that it
    // goes on.
    #[test]
    fn what_is_repeated_is_said_seldom_and_counted() {
        let lines = LogLines::new(Arc::new(WakeFd::new().unwrap()));
        let start = Instant::now();
        let said =
            |key: &str, seconds| lines.said_now(key, "no".to_owned(), start + Duration::from_secs(seconds));
        assert_eq!(said("a", 0).unwrap(), "no");
        assert_eq!(said("b", 0).unwrap(), "no");
        for _ in 0..1045 {
            assert_eq!(said("a", 59), None);
        }
        assert_eq!(
            said("a", 75).unwrap(),
            "no (and 1045 times more in the last 75 s)"
        );
        assert_eq!(said("a", 76), None);
        for number in 0..2 * REMEMBERED_MAX {
            assert!(said(&number.to_string(), 76).is_some());
        }
        assert_eq!(lines.said.lock().len(), REMEMBERED_MAX);
        assert_eq!(said("b", 200).unwrap(), "no");
    }

    // If this failed, a peer that sends garbage in a loop would fill the broker's memory with log lines, or a drop of
    // lines would go unnoticed.
    #[test]
    fn the_queue_is_bounded_and_says_what_it_dropped() {
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
