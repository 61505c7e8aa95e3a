//! Base64 (RFC 4648, section 4), for header fields that hold bytes.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Whether the last group is filled up with `=`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Padding {
    Yes,
    No,
}

/// Appends `bytes`, encoded.
pub(super) fn push(out: &mut String, bytes: &[u8], padding: Padding) {
    for group in bytes.chunks(3) {
        let bits =
            group.iter().zip([16, 8, 0]).fold(0_u32, |bits, (byte, shift)| bits | u32::from(*byte) << shift);
        for place in 0..4 {
            if place <= group.len() {
                let digit = bits >> (18 - 6 * place) & 0x3f;
                out.push(char::from(ALPHABET[digit as usize]));
            } else if padding == Padding::Yes {
                out.push('=');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_rfc_4648_hold() {
        for (plain, padded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let (mut with, mut without) = (String::new(), String::new());
            push(&mut with, plain.as_bytes(), Padding::Yes);
            push(&mut without, plain.as_bytes(), Padding::No);
            assert_eq!(with, padded);
            assert_eq!(without, padded.trim_end_matches('='));
        }
    }
}
