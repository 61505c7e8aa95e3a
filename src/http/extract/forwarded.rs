//! Parsers of the fields in which proxies say whom they forward for.
//!
//! A proxy appends, so only the right end of such a field is written by machines that can be trusted; what is left
//! of them is whatever the client sent. Both parsers therefore read from the right, over all lines of the field,
//! and nothing that stands further left can change what they give first: not an open quote, not a comma in one.
//!
//! An item is `None` where the hop names no address: `unknown`, an obfuscated `_name` (RFC 7239, section 6), a
//! repeated or absent `for`, or no syntax at all.

use std::net::IpAddr;

use http::HeaderValue;

/// The longest text that can hold an address and its port, with room to spare.
const MAX_NODE_BYTES: usize = 96;

/// The addresses of `X-Forwarded-For`, last first. Empty elements are left out.
pub(super) fn x_forwarded_for<'a, L>(lines: L) -> impl Iterator<Item = Option<IpAddr>>
where
    L: DoubleEndedIterator<Item = &'a HeaderValue>,
{
    let elements = lines.rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    elements.map(trim).filter(|element| !element.is_empty()).map(address)
}

/// The addresses of `Forwarded` (RFC 7239), last first. Empty elements are left out.
pub(super) fn forwarded<'a, L>(lines: L) -> impl Iterator<Item = Option<IpAddr>>
where
    L: DoubleEndedIterator<Item = &'a HeaderValue>,
{
    let elements = lines.rev().flat_map(|line| Elements { rest: Some(line.as_bytes()) });
    elements.map(trim).filter(|element| !element.is_empty()).map(forwarded_for)
}

/// An address with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`,
/// `[2001:db8::1]:80`. An IPv4-mapped address comes out as IPv4.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let address = if let Some(bracketed) = text.strip_prefix('[') {
        let (address, port) = bracketed.split_once(']')?;
        if !port.is_empty() && !is_port(port.strip_prefix(':')?) {
            return None;
        }
        IpAddr::V6(address.parse().ok()?)
    } else if let Ok(address) = text.parse() {
        address
    } else {
        let (address, port) = text.split_once(':')?;
        IpAddr::V4(address.parse().ok().filter(|_| is_port(port))?)
    };
    Some(address.to_canonical())
}

/// Whether this is RFC 7239's `node-port`: up to five digits, or an obfuscated name.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// Elements of one line, last first, split at the commas outside quoted strings.
struct Elements<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = self.rest.take()?;
        let mut quoted = false;
        for (at, byte) in line.iter().enumerate().rev() {
            let (before, from) = line.split_at(at);
            match byte {
                b'"' if !quoted => quoted = true,
                b'"' if !ends_in_escape(before) => quoted = false,
                b',' if !quoted => {
                    self.rest = Some(before);
                    return from.get(1..);
                }
                _ => {}
            }
        }
        Some(line)
    }
}

/// Whether the byte that follows is escaped: an odd number of backslashes stands before it.
fn ends_in_escape(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The address in the `for` parameter of one element.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut rest = element;
    let mut found = None;
    loop {
        rest = trim_start(rest);
        match rest.split_first() {
            None => return found,
            Some((b';', after)) => rest = after,
            Some(_) => {
                let (name, value, after) = pair(rest)?;
                if name.eq_ignore_ascii_case(b"for") {
                    // A second one breaks the syntax, and there is no telling which of them to believe.
                    if found.is_some() {
                        return None;
                    }
                    found = Some(value.address()?);
                }
                rest = after;
            }
        }
    }
}

enum Value<'a> {
    Plain(&'a [u8]),
    /// What stands between the quotes, escapes and all.
    Quoted(&'a [u8]),
}

impl Value<'_> {
    fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Plain(text) => address(text),
            Self::Quoted(text) if !text.contains(&b'\\') => address(text),
            Self::Quoted(text) => {
                let mut plain = [0; MAX_NODE_BYTES];
                address(unescape(text, &mut plain)?)
            }
        }
    }
}

/// Splits `name=value`, and what follows up to the next `;`, off the front.
fn pair(text: &[u8]) -> Option<(&[u8], Value<'_>, &[u8])> {
    let (name, rest) = text.split_at_checked(text.iter().position(|byte| *byte == b'=')?)?;
    if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
        return None;
    }
    let value = rest.get(1..)?;
    let (value, after) = match value.strip_prefix(b"\"") {
        Some(quoted) => {
            let end = closing_quote(quoted)?;
            (Value::Quoted(quoted.get(..end)?), quoted.get(end + 1..)?)
        }
        None => {
            let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
            let (value, after) = value.split_at(end);
            (Value::Plain(trim(value)), after)
        }
    };
    let after = trim_start(after);
    matches!(after.first(), None | Some(b';')).then_some((name, value, after))
}

fn closing_quote(quoted: &[u8]) -> Option<usize> {
    let mut escaped = false;
    quoted.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })
}

fn unescape<'a>(text: &[u8], plain: &'a mut [u8; MAX_NODE_BYTES]) -> Option<&'a [u8]> {
    let mut length = 0;
    let mut escaped = false;
    for byte in text {
        if *byte == b'\\' && !escaped {
            escaped = true;
            continue;
        }
        escaped = false;
        *plain.get_mut(length)? = *byte;
        length += 1;
    }
    plain.get(..length)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Without the spaces and tabs at both ends.
pub(super) fn trim(text: &[u8]) -> &[u8] {
    let text = trim_start(text);
    let end = text.iter().rposition(|byte| !is_space(*byte)).map_or(0, |at| at + 1);
    text.get(..end).unwrap_or_default()
}

fn trim_start(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !is_space(*byte)).unwrap_or(text.len());
    text.get(start..).unwrap_or_default()
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(bytes: &[u8]) -> HeaderValue {
        HeaderValue::from_bytes(bytes).unwrap()
    }

    fn all_forwarded(bytes: &[u8]) -> Vec<Option<IpAddr>> {
        forwarded([line(bytes)].iter()).collect()
    }

    fn all_x(bytes: &[u8]) -> Vec<Option<IpAddr>> {
        x_forwarded_for([line(bytes)].iter()).collect()
    }

    #[test]
    fn quoted_commas_and_quotes_do_not_split() {
        let found = all_forwarded(br#"for=192.0.2.1;host="a,b\",\\", for="[2001:db8::1]:80""#);
        assert_eq!(found, [Some("2001:db8::1".parse().unwrap()), Some("192.0.2.1".parse().unwrap())]);
    }

    #[test]
    fn an_open_quote_reaches_no_further_right() {
        let found = all_forwarded(br#"for="x, for=192.0.2.1"#);
        assert_eq!(found.first(), Some(&Some("192.0.2.1".parse().unwrap())));
    }

    #[test]
    fn escapes_in_an_address_are_taken_off() {
        assert_eq!(all_forwarded(br#"for="192\.0.2.1""#), [Some("192.0.2.1".parse().unwrap())]);
    }

    /// Bytes that a header value can hold, weighted towards those that mean something here.
    fn field_bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            4 => proptest::sample::select(b"\",;=\\ \t:[]_.for10".to_vec()),
            1 => (0x20_u8..=0xff).prop_filter("not in a field", |byte| *byte != 0x7f),
        ];
        proptest::collection::vec(byte, 0..80)
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd(bytes in field_bytes()) {
            all_forwarded(&bytes);
            all_x(&bytes);
        }

        #[test]
        fn what_stands_left_changes_nothing_on_the_right(left in field_bytes(), right in 0_u32..) {
            let address = IpAddr::from(std::net::Ipv4Addr::from(right));
            let joined = |right: String| [left.as_slice(), b",", right.as_bytes()].concat();
            let nearest = |found: Vec<Option<IpAddr>>| found.first().copied();
            let expected = Some(Some(address));
            prop_assert_eq!(nearest(all_x(&joined(format!("{address}")))), expected);
            prop_assert_eq!(nearest(all_forwarded(&joined(format!("for={address}")))), expected);
            let full = format!("by=_gw;for=\"{address}:80\";host=\"a\\\"b, c\"");
            prop_assert_eq!(nearest(all_forwarded(&joined(full))), expected);
        }

        #[test]
        fn addresses_survive_being_written(bits in any::<u128>(), port in any::<u16>()) {
            let address = std::net::Ipv6Addr::from(bits);
            let expected = Some(IpAddr::V6(address).to_canonical());
            prop_assert_eq!(super::address(address.to_string().as_bytes()), expected);
            prop_assert_eq!(super::address(format!("[{address}]:{port}").as_bytes()), expected);
        }
    }
}
