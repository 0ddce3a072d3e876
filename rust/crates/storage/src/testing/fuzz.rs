//! Files of a directory with arbitrary damage: no bytes may cause a panic, or more memory than the file's
//! size and a window explain.

use std::fs::{self, File};
use std::path::Path;

use logcore_records::{BatchBuilder, Compression};

use crate::config::LogConfig;
use crate::files::checkpoints;
use crate::files::checkpoints::{LEADER_EPOCH_FILE, Offsets, RECOVERY_POINT_FILE, read_epochs, read_offsets};
use crate::files::metadata::{self, META_PROPERTIES_FILE, MetaProperties, PARTITION_METADATA_FILE};
use crate::files::{INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, segment_file};
use crate::index::sparse::OffsetIndex;
use crate::index::sparse::TimeIndex;
use crate::index::transactions;
use crate::index::transactions::{AbortedTxn, TxnIndex};
use crate::leader_epochs::LeaderEpochs;
use crate::log::Log;
use crate::log::loader::LastKnown;
use crate::producers::snapshot;
use crate::segment::scan::{Next, Scanner};
use crate::support::allocation::most_during;
use crate::support::for_each_seed;
use crate::support::mutate::mutated;
use crate::support::random::Random;

/// Seeds of a normal run. Each makes an input for every decoder.
const SEEDS: u64 = 1_000;
/// More than a scan reads at once.
const WINDOW: usize = 3 << 20;

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 4000,
        index_interval_bytes: 100,
        segment_index_bytes: 4096,
        retention_ms: -1,
        producer_id_expiration_ms: i64::MAX,
        ..LogConfig::default()
    }
}

/// All files of a cleanly closed log of two segments with producers.
fn good_files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let log = Log::open(dir, config(), true, 0).unwrap();
    for number in 0..40 {
        let codec = Compression::ALL[number % 5];
        let mut builder = BatchBuilder::new(codec, None);
        builder.set_producer_state(number as i64 % 3, 0, number as i32 / 3 * 2);
        for _ in 0..2 {
            let value = [b'v'; 60];
            builder
                .append(1000 + number as i64, Some(b"k"), Some(&value), &[])
                .unwrap();
        }
        let mut batch = builder.build().unwrap();
        log.append_as_leader(&mut batch, number as i32 / 9, 5000).unwrap();
    }
    log.close().unwrap();
    let aborted = TxnIndex::create(&segment_file(dir, 0, TXN_INDEX_SUFFIX)).unwrap();
    for number in 0..4 {
        let entry = AbortedTxn {
            producer_id: number,
            first_offset: number,
            last_offset: 10 + number,
            last_stable_offset: number,
        };
        aborted.append(entry).unwrap();
    }
    metadata::write_topic_id(dir, &[7; 16]).unwrap();
    MetaProperties::new(1, "cluster").write(dir).unwrap();
    let offsets = Offsets::from([(("t".to_owned(), 0), 7), (("u".to_owned(), 12), 9)]);
    checkpoints::write_offsets(&dir.join(RECOVERY_POINT_FILE), &offsets).unwrap();
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    };
    let entries = fs::read_dir(dir).unwrap();
    let mut found: Vec<_> = entries.map(|entry| read(entry.unwrap())).collect();
    found.sort();
    found
}

/// Calls everything that reads a file of this name.
fn decode(path: &Path, bytes: &[u8], random: &mut Random) {
    fs::write(path, bytes).unwrap();
    let dir = path.parent().unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let size = bytes.len() as u64;
    if name.ends_with(LOG_SUFFIX) {
        let file = File::open(path).unwrap();
        for scan in [
            Scanner::checked(&file, 0, size),
            Scanner::headers(&file, 0, size),
            Scanner::all_headers(&file, 0, size),
        ] {
            walk(scan);
        }
    } else if name.ends_with(INDEX_SUFFIX) {
        for index in [OffsetIndex::open_sealed(path, 0), OffsetIndex::copy(path, 0)]
            .into_iter()
            .flatten()
        {
            let _ = (index.is_sane(100, 1 << 20), index.last());
            let found = index.lookup(random.next() as i64 >> random.below(63), 1 << 20);
            assert!(found.position < 1 << 20);
        }
    } else if name.ends_with(TIME_INDEX_SUFFIX) {
        for index in [TimeIndex::open_sealed(path, 0), TimeIndex::copy(path, 0)]
            .into_iter()
            .flatten()
        {
            let _ = (index.is_sane(100), index.last());
            let _ = index.lookup(random.next() as i64 >> random.below(63), 100);
        }
    } else if name.ends_with(TXN_INDEX_SUFFIX) {
        let _ = transactions::decode(bytes);
        if let Ok(index) = TxnIndex::open(path) {
            index.collect(0, random.next() as i64, &mut Vec::new());
        }
    } else if name.ends_with(".snapshot") {
        let _ = snapshot::decode(bytes);
        let mut repaired = bytes.to_vec();
        if repaired.len() > 6 {
            let checksum = logcore_records::crc32c(&repaired[6..]);
            repaired[2..6].copy_from_slice(&checksum.to_be_bytes());
        }
        let _ = snapshot::decode(&repaired);
    } else if name == LEADER_EPOCH_FILE {
        let _ = read_epochs(path);
        let mut epochs = LeaderEpochs::load(dir).unwrap();
        epochs.truncate_from_start(random.below(100) as i64);
        let _ = epochs.end_offset(random.below(9) as i32, 80);
        epochs.truncate_from_end(random.below(100) as i64);
    } else if name == RECOVERY_POINT_FILE {
        let _ = read_offsets(path);
    } else if name == META_PROPERTIES_FILE {
        let _ = MetaProperties::read(dir);
    } else if name == PARTITION_METADATA_FILE {
        let _ = metadata::read_topic_id(dir);
    } else {
        panic!("no reader for {name}");
    }
}

/// Walks to the end.
fn walk(mut scan: Scanner<'_>) {
    let mut before = scan.position();
    while let Next::Batch(batch) = scan.next().unwrap() {
        assert!(scan.position() > before && batch.last_offset >= batch.base_offset);
        before = scan.position();
    }
}

// Broken if it failed: a damaged file could end the process, or take all of its memory.
#[test]
fn no_file_costs_more_than_its_size() {
    let good = crate::testing::scratch();
    let files = good_files(good.path());
    let kinds: Vec<Vec<u8>> = files.iter().map(|(_, bytes)| bytes.clone()).collect();
    let dir = crate::testing::scratch();
    for_each_seed(SEEDS, |random| {
        for (number, (name, _)) in files.iter().enumerate() {
            // Mostly of the same kind, sometimes another file with this name.
            let inputs = if random.one_in(10) {
                &kinds[..]
            } else {
                &kinds[number..=number]
            };
            let bytes = mutated(random, inputs);
            let path = dir.path().join(name);
            let (most, ()) = most_during(|| decode(&path, &bytes, random));
            let limit = WINDOW + 64 * bytes.len();
            assert!(most <= limit, "{name} took {most} bytes, {limit} is the limit");
            fs::remove_file(path).unwrap();
        }
    });
}

/// Reads everything that can be read.
fn use_log(log: &Log) {
    let mut offset = log.log_start_offset();
    while let Ok(slice) = log.read(offset, 500, i64::MAX, true) {
        if slice.is_empty() {
            break;
        }
        let _ = slice.read_whole_batches();
        offset = slice.base_offset.max(offset) + 1;
        if offset > 1000 {
            break;
        }
    }
    for time in [0, 1010, 1039, i64::MAX] {
        let _ = log.offset_for_timestamp(time);
    }
    let _ = log.max_timestamp();
}

// Broken if it failed: one damaged file in a directory could end the process that opens it.
#[test]
fn any_directory_is_opened_or_refused() {
    let good = crate::testing::scratch();
    let files = good_files(good.path());
    for_each_seed(SEEDS, |random| {
        let dir = crate::testing::scratch();
        let damaged = random.below(files.len());
        for (number, (name, bytes)) in files.iter().enumerate() {
            let bytes = if number == damaged || random.one_in(8) {
                mutated(random, std::slice::from_ref(bytes))
            } else {
                bytes.clone()
            };
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        if let Ok(log) = Log::open_read_only(dir.path()) {
            use_log(&log);
        }
        let known = LastKnown {
            clean_shutdown: random.one_in(2),
            recovery_point: random.below(90) as i64,
            log_start_offset: random.below(90) as i64,
            high_watermark: random.one_in(4).then(|| random.below(90) as i64),
        };
        if let Ok(log) = Log::open_with(dir.path(), config(), known) {
            use_log(&log);
            let mut builder = BatchBuilder::new(Compression::None, None);
            builder.append(1, None, Some(b"v"), &[]).unwrap();
            let mut batch = builder.build().unwrap();
            let _ = log.append_as_leader(&mut batch, 1 << 20, 5000);
            let _ = log.maintain(5000);
            let _ = log.close();
        }
    });
}
