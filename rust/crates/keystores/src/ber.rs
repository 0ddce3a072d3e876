//! BER as DER: what some tools write around PKCS #12 (Bouncy Castle, NSS).
//!
//! Owns the two freedoms of BER (X.690, 8.1.3.6 and 8.7) that `p12-keystore` does not read. A length may be
//! 0x80, "indefinite", with two zero bytes after the content; an octet string may be a sequence of shorter
//! ones. Depth and size are limited. Pure; any thread.

pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const OCTET_STRING: u8 = 0x04;
/// The tag \[0\] around another element.
pub(crate) const EXPLICIT_0: u8 = CONSTRUCTED | IMPLICIT_0;
/// The tag \[0\] instead of an octet string's.
const IMPLICIT_0: u8 = 0x80;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// This bit of a tag says that the content is elements.
const CONSTRUCTED: u8 = 0x20;
/// The number of a tag of several bytes; PKCS #12 has none.
const LONG_TAG: u8 = 0x1F;
const INDEFINITE: u8 = 0x80;
const END_OF_CONTENT: [u8; 2] = [0, 0];
/// PKCS #12 needs 10.
const DEPTH_MAX: usize = 32;
/// Trust stores of operating systems have 200 KiB. Parsed, a file takes at most some 32 times its bytes.
const SIZE_MAX: usize = 4 << 20;

/// One element. Octet strings are in one piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) tag: u8,
    pub(crate) content: Content,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Bytes(Vec<u8>),
    Elements(Vec<Element>),
}

impl Element {
    /// The element that is all of `bytes`. `None` if there is none, or if it is too large or too deep.
    pub(crate) fn parse(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() > SIZE_MAX {
            return None;
        }
        let element = parse(&mut bytes, &[], 0)?;
        bytes.is_empty().then_some(element)
    }

    pub(crate) fn to_der(&self) -> Vec<u8> {
        match &self.content {
            Content::Bytes(bytes) => encode(self.tag, bytes),
            Content::Elements(elements) => {
                let content: Vec<u8> = elements.iter().flat_map(Self::to_der).collect();
                encode(self.tag, &content)
            }
        }
    }

    /// The element at `path`, which has an index for each level.
    pub(crate) fn at(&self, path: &[usize]) -> Option<&Self> {
        let Some((index, path)) = path.split_first() else {
            return Some(self);
        };
        match &self.content {
            Content::Bytes(_) => None,
            Content::Elements(elements) => elements.get(*index)?.at(path),
        }
    }
}

/// Tag, length and content in DER.
pub(crate) fn encode(tag: u8, content: &[u8]) -> Vec<u8> {
    let size = content.len().to_be_bytes();
    let size = &size[size.iter().take_while(|byte| **byte == 0).count()..];
    let mut encoded = vec![tag];
    match size {
        [] => encoded.push(0),
        [short] if *short < 0x80 => encoded.push(*short),
        long => {
            encoded.push(0x80 | long.len() as u8);
            encoded.extend(long);
        }
    }
    encoded.extend(content);
    encoded
}

/// Takes one element from `bytes`. `before` are those before it in the same one.
fn parse(bytes: &mut &[u8], before: &[Element], depth: usize) -> Option<Element> {
    let tag = take(bytes, 1)?[0];
    if tag & LONG_TAG == LONG_TAG || depth > DEPTH_MAX {
        return None;
    }
    let length = length(bytes)?;
    if tag & CONSTRUCTED == 0 {
        let content = Content::Bytes(take(bytes, length?)?.to_vec());
        return Some(Element { tag, content });
    }
    let mut elements = Vec::new();
    if let Some(length) = length {
        let mut content = take(bytes, length)?;
        while !content.is_empty() {
            elements.push(parse(&mut content, &elements, depth + 1)?);
        }
    } else {
        while !bytes.starts_with(&END_OF_CONTENT) {
            elements.push(parse(bytes, &elements, depth + 1)?);
        }
        take(bytes, END_OF_CONTENT.len())?;
    }
    if is_octet_string(tag, before) {
        let content = Content::Bytes(joined(elements)?);
        let tag = tag & !CONSTRUCTED;
        return Some(Element { tag, content });
    }
    let content = Content::Elements(elements);
    Some(Element { tag, content })
}

/// Whether a constructed element is an octet string. A \[0\] is one in `EncryptedContentInfo` (RFC 5652),
/// after the content's type and the cipher.
fn is_octet_string(tag: u8, before: &[Element]) -> bool {
    let tags = before.iter().map(|element| element.tag);
    let is_encrypted_content = tag == EXPLICIT_0 && tags.eq([OBJECT_IDENTIFIER, SEQUENCE]);
    tag == CONSTRUCTED | OCTET_STRING || is_encrypted_content
}

fn joined(parts: Vec<Element>) -> Option<Vec<u8>> {
    let mut joined = Vec::new();
    for part in parts {
        match part.content {
            Content::Bytes(bytes) if part.tag == OCTET_STRING => joined.extend(bytes),
            _ => return None,
        }
    }
    Some(joined)
}

/// The length, or the inner `None` if it is indefinite.
fn length(bytes: &mut &[u8]) -> Option<Option<usize>> {
    match take(bytes, 1)?[0] {
        INDEFINITE => Some(None),
        short @ ..INDEFINITE => Some(Some(short.into())),
        long => {
            let digits = take(bytes, (long & !INDEFINITE).into())?;
            let length = digits.iter().try_fold(0usize, |length, digit| {
                length.checked_mul(0x100)?.checked_add((*digit).into())
            });
            Some(Some(length?))
        }
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const STORE: &[u8] = include_bytes!("../fixtures/ec.p12");

    /// The element in BER: every length indefinite, every octet string in pieces of `piece` bytes.
    pub(crate) fn to_ber(element: &Element, piece: usize) -> Vec<u8> {
        let content: Vec<u8> = match &element.content {
            Content::Elements(elements) => elements.iter().flat_map(|each| to_ber(each, piece)).collect(),
            Content::Bytes(bytes) if matches!(element.tag, OCTET_STRING | IMPLICIT_0) => bytes
                .chunks(piece)
                .flat_map(|chunk| encode(OCTET_STRING, chunk))
                .collect(),
            Content::Bytes(bytes) => return encode(element.tag, bytes),
        };
        let mut encoded = vec![element.tag | CONSTRUCTED, INDEFINITE];
        encoded.extend(content);
        encoded.extend(END_OF_CONTENT);
        encoded
    }

    /// If this failed, keys of some sizes could not be decrypted.
    #[test]
    fn lengths_are_encoded_as_der_wants_them() {
        assert_eq!(encode(4, &[]), [4, 0]);
        assert_eq!(encode(4, &[7; 0x7F])[..3], [4, 0x7F, 7]);
        assert_eq!(encode(4, &[7; 0x80])[..4], [4, 0x81, 0x80, 7]);
        assert_eq!(encode(4, &[7; 0x1234])[..5], [4, 0x82, 0x12, 0x34, 7]);
    }

    /// If this failed, a store in BER would be read as another one, or not at all.
    #[test]
    fn ber_becomes_the_der_it_was_made_from() {
        let store = Element::parse(STORE).unwrap();
        assert_eq!(store.to_der(), STORE);
        for piece in [1, 7, 1000, 1 << 20] {
            assert_eq!(Element::parse(&to_ber(&store, piece)).unwrap().to_der(), STORE);
        }
        let safes = store.at(&[1, 1, 0]).unwrap();
        let Content::Bytes(safes) = &safes.content else {
            panic!("{safes:?}")
        };
        let parsed = Element::parse(safes).unwrap();
        assert_eq!(Element::parse(&to_ber(&parsed, 16)).unwrap().to_der(), *safes);
    }

    /// If this failed, a damaged file could end the process, or take its memory.
    #[test]
    fn damage_is_none_or_another_element() {
        let ber = to_ber(&Element::parse(STORE).unwrap(), 100);
        for end in 0..ber.len() {
            assert_eq!(Element::parse(&ber[..end]), None, "cut at {end}");
        }
        let telling = [
            0, 1, 3, 4, 6, 0x24, 0x30, 0x7F, 0x80, 0x81, 0x84, 0xA0, 0xBF, 0xFF,
        ];
        let mut damaged = ber.clone();
        for at in 0..ber.len() {
            for byte in telling {
                damaged[at] = byte;
                if let Some(element) = Element::parse(&damaged) {
                    let der = element.to_der();
                    assert_eq!(Element::parse(&der), Some(element), "{byte:#x} at {at}");
                }
            }
            damaged[at] = ber[at];
        }
        for bytes in [
            &[SEQUENCE, INDEFINITE].repeat(1 << 20),
            &vec![SEQUENCE; SIZE_MAX + 1],
        ] {
            assert_eq!(Element::parse(bytes), None);
        }
        assert_eq!(Element::parse(&[SEQUENCE, 0x89, 1, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Element::parse(&[OCTET_STRING, INDEFINITE, 0, 0]), None);
        assert_eq!(Element::parse(&[STORE, b"more"].concat()), None);
    }
}
