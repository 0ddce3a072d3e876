//! If these fail, a batch of some client cannot be read, or a small hostile batch takes all memory.
use super::*;
use proptest::prelude::*;

const CODECS: [Compression; 4] = [
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];

fn compressed(codec: Compression, input: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    compress(codec, None, input, &mut out).unwrap();
    out
}

/// Compressible input: words from a small set.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let word = prop::sample::select(vec!["carrier", "origin", "delay", "\n", "7"]);
    proptest::collection::vec(word, 0..20_000).prop_map(|words| words.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_was_compressed_comes_back(input in text(), code in 0u8..5, dirty: bool) {
        let codec = Compression::from_code(code).unwrap();
        let payload = compressed(codec, &input);
        let mut out = if dirty { vec![9; 333] } else { Vec::new() };
        decompress(codec, &payload, input.len(), &mut out).unwrap();
        prop_assert_eq!(&out, &input);
        if !input.is_empty() {
            let error = decompress(codec, &payload, input.len() - 1, &mut out);
            let too_large = matches!(error, Err(RecordError::DecompressedTooLarge { .. }));
            prop_assert!(too_large, "{:?}", error);
        }
    }

    #[test]
    fn random_bytes_come_back(input in proptest::collection::vec(any::<u8>(), 0..70_000), code in 0u8..5) {
        let codec = Compression::from_code(code).unwrap();
        let mut out = Vec::new();
        decompress(codec, &compressed(codec, &input), input.len(), &mut out).unwrap();
        prop_assert_eq!(&out, &input);
    }

    #[test]
    fn a_damaged_payload_stays_within_the_limit(
        input in text(), code in 0u8..5,
        changes in proptest::collection::vec(any::<(prop::sample::Index, u8)>(), 1..6),
    ) {
        let codec = Compression::from_code(code).unwrap();
        let mut payload = compressed(codec, &input);
        for (at, byte) in changes {
            if !payload.is_empty() {
                let at = at.index(payload.len());
                payload[at] = byte;
            }
        }
        let mut out = Vec::new();
        let limit = 50_000;
        let _ = decompress(codec, &payload, limit, &mut out);
        prop_assert!(out.len() <= limit && out.capacity() <= limit);
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        input in proptest::collection::vec(any::<u8>(), 0..300), code in 0u8..5,
    ) {
        let codec = Compression::from_code(code).unwrap();
        let mut out = Vec::new();
        let _ = decompress(codec, &input, 10_000, &mut out);
        let _ = decompress_lz4_legacy(&input, 10_000, &mut out);
        prop_assert!(out.len() <= 10_000 && out.capacity() <= 10_000);
    }
}

#[test]
fn a_bomb_is_refused_within_the_limit() {
    let zeros = vec![0; 64 << 20];
    let limit = 1 << 20;
    for codec in CODECS {
        let payload = compressed(codec, &zeros);
        let mut out = Vec::new();
        let error = decompress(codec, &payload, limit, &mut out);
        assert_eq!(error, Err(RecordError::DecompressedTooLarge { codec, limit }));
        assert!(out.capacity() <= limit, "{codec}: {}", out.capacity());
    }
}

#[test]
fn a_zstd_frame_that_hides_its_size_is_bounded_too() {
    let zeros = vec![0; 8 << 20];
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_contentsize(false).unwrap();
    encoder.write_all(&zeros).unwrap();
    let payload = encoder.finish().unwrap();
    let mut out = Vec::new();
    decompress(Compression::Zstd, &payload, zeros.len(), &mut out).unwrap();
    assert_eq!(out, zeros);
    let mut out = Vec::new();
    assert!(decompress(Compression::Zstd, &payload, 1 << 20, &mut out).is_err());
    assert!(out.capacity() <= 1 << 20);
}

#[test]
fn a_raw_snappy_block_is_readable() {
    let input = b"raw raw raw raw raw raw raw".repeat(50);
    let payload = snap::raw::Encoder::new().compress_vec(&input).unwrap();
    let mut out = Vec::new();
    decompress(Compression::Snappy, &payload, 1 << 20, &mut out).unwrap();
    assert_eq!(out, input);
}

#[test]
fn a_snappy_stream_may_repeat_its_header() {
    let mut payload = compressed(Compression::Snappy, b"first ");
    payload.extend(compressed(Compression::Snappy, b"second"));
    let mut out = Vec::new();
    decompress(Compression::Snappy, &payload, 100, &mut out).unwrap();
    assert_eq!(out, b"first second");
}

#[test]
fn gzip_members_may_follow_each_other() {
    let mut payload = compressed(Compression::Gzip, b"first ");
    payload.extend(compressed(Compression::Gzip, b"second"));
    let mut out = Vec::new();
    decompress(Compression::Gzip, &payload, 100, &mut out).unwrap();
    assert_eq!(out, b"first second");
}

#[test]
fn a_snappy_block_that_states_too_large_a_size_is_refused_before_allocation() {
    // The varint in front says 2^31 - 1 bytes; the block has none.
    let mut out = Vec::new();
    let block = [0xff, 0xff, 0xff, 0xff, 0x07];
    assert!(decompress(Compression::Snappy, &block, usize::MAX, &mut out).is_err());
    assert_eq!(out.capacity(), 0);
}

// If this failed, a batch that every reader can read would be refused.
#[test]
fn nothing_decompresses_to_more_than_most_decompressed() {
    for codec in CODECS {
        for size in [0, 1, 7, 1000, 1 << 20, 32 << 20] {
            let payload = compressed(codec, &vec![0; size]);
            assert!(size <= codec.most_decompressed(payload.len()), "{codec}");
        }
    }
}

#[test]
fn levels_out_of_range_are_clamped() {
    for codec in CODECS {
        for level in [i32::MIN, -1, 0, 1, 9, 12] {
            let mut payload = Vec::new();
            compress(codec, Some(level), b"some text", &mut payload).unwrap();
            let mut out = Vec::new();
            decompress(codec, &payload, 100, &mut out).unwrap();
            assert_eq!(out, b"some text");
        }
    }
}

#[test]
fn names_and_codes_are_kafkas() {
    for (code, name) in ["none", "gzip", "snappy", "lz4", "zstd"].iter().enumerate() {
        let codec = Compression::from_code(code as u8).unwrap();
        assert_eq!(codec.name(), *name);
        assert_eq!(name.parse::<Compression>().unwrap(), codec);
    }
    assert!(Compression::from_code(5).is_err());
    assert!("brotli".parse::<Compression>().is_err());
}
