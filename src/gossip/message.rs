//! The wire format. Nothing outside this file knows how a message is encoded.
//!
//! A payload is a version byte, a kind byte and a body in `bincode`'s variable-length integers, always decoded under a
//! limit, because a length that a peer claims must not decide what is allocated here.
//!
//! The body of a [`Frame`](FrameWriter) is a header, the beats, and groups of shares until a zero byte. A group names
//! its actor once, and then lists shares in the order of their versions; a typical share takes one byte of flags, 16 of
//! digest, one to three of count and one of the time in which it was spent. Limit and epoch are written only where they change, versions only where they skip.

mod notices;

use std::sync::Arc;

use bincode::{
    Decode, Encode,
    config::{Configuration, Limit, LittleEndian, Varint},
    de::{
        Decoder, DecoderImpl,
        read::{Reader, SliceReader},
    },
    enc::{Encoder, EncoderImpl, write::Writer},
    error::{DecodeError, EncodeError},
};

pub(crate) use self::notices::{Notices, WireKind, WireNotice, WireSaid};
use crate::{counter::Share, key::Key};

/// The version of the protocol, in the first byte of each payload.
pub(crate) const VERSION: u8 = 1;
/// What decoding one payload may allocate.
const DECODE_BYTES: usize = 4 << 20;
/// No actor lives to number so many changes; a higher version would stand for good where it was believed.
pub(crate) const MAX_VERSION: u64 = 1 << 48;
/// The most nodes that a hello may list.
pub(crate) const MAX_NODES: usize = 1_024;
/// The most limits that a hello may list.
pub(crate) const MAX_LIMITS: usize = 256;

/// What the values of one frame may add up to in memory. They are taken one at a time and not kept, and none of them
/// has a length of its own, so this only has to be more than the largest frame can hold.
const FRAME_DECODE_BYTES: usize = 64 << 20;

type FrameConfig = Configuration<LittleEndian, Varint, Limit<FRAME_DECODE_BYTES>>;

fn frame_config() -> FrameConfig {
    bincode::config::standard().with_limit::<FRAME_DECODE_BYTES>()
}

const HELLO: u8 = 1;
const FRAME: u8 = 2;
const SYNC_REQUEST: u8 = 3;
const SYNC: u8 = 4;
const LEAVE: u8 = 5;
const NOTICES: u8 = 16;

/// An actor as it is written: the node's place in the sender's list, and the incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub(crate) struct WireActor {
    pub(crate) node: u16,
    pub(crate) incarnation: u32,
}

/// How far somebody has come with an actor's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Progress {
    pub(crate) actor: WireActor,
    /// Every change up to this version is there.
    pub(crate) version: u64,
    /// Changes up to this version can no longer be told one by one.
    pub(crate) floor: u64,
}

/// The first message on a connection, from both sides.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Hello {
    pub(crate) cluster: String,
    pub(crate) incarnation: u32,
    /// All nodes the sender knows of, in the order that it numbers them by.
    pub(crate) nodes: Arc<[String]>,
    /// Name and fingerprint of its limits, in the order that it numbers them by.
    pub(crate) limits: Vec<(String, u64)>,
    /// Whether it has its peers' state.
    pub(crate) synced: bool,
    /// Its wall clock in milliseconds, to estimate the skew from and for nothing else.
    pub(crate) wall_ms: u64,
    pub(crate) progress: Vec<Progress>,
    /// What its notices about each limit come to, in the order of the limits.
    pub(crate) notices: Vec<u64>,
}

/// Asks for all shares of actors that the asker is behind on.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct SyncRequest {
    /// Numbers the request; the answer repeats it.
    pub(crate) number: u32,
    /// Whether the asker has nothing yet, and wants the levels too.
    pub(crate) joining: bool,
    pub(crate) progress: Vec<Progress>,
}

/// A part of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Sync {
    pub(crate) number: u32,
    /// Counts the parts from 0.
    pub(crate) part: u32,
    /// Whether the sender has its peers' state itself.
    pub(crate) synced: bool,
    pub(crate) keys: Vec<SyncKey>,
    /// In the last part: how far the sender had come when it began.
    pub(crate) end: Option<Vec<Progress>>,
}

/// What a node knows of one key.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct SyncKey {
    pub(crate) limit: u16,
    pub(crate) digest: u128,
    /// What its level lacks to the capacity, in 1/256 units.
    pub(crate) missing: u64,
    /// Where the window slides: what is within it.
    pub(crate) parts: Vec<SyncPart>,
    pub(crate) shares: Vec<SyncShare>,
}

/// What was spent in a part of a window that slides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct SyncPart {
    /// Milliseconds since the part began.
    pub(crate) age_ms: u64,
    /// In 1/256 units.
    pub(crate) amount: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct SyncShare {
    pub(crate) actor: WireActor,
    pub(crate) epoch: u16,
    pub(crate) spent: u64,
    pub(crate) refunded: u64,
    /// Milliseconds since it was written.
    pub(crate) age_ms: u64,
}

/// A whole payload, but for a frame's body, which is read as it comes.
pub(crate) enum Message<'a> {
    Hello(Hello),
    Frame(FrameReader<'a>),
    SyncRequest(SyncRequest),
    Sync(Sync),
    Notices(Notices),
    Leave,
}

/// Why a payload could not be read.
#[derive(Debug)]
pub(crate) enum Malformed {
    Version(u8),
    Kind(u8),
    Body(DecodeError),
    TooShort,
    Bounds(&'static str),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version(version) => {
                write!(f, "it speaks version {version} of the protocol; this node speaks {VERSION}")
            }
            Self::Kind(kind) => write!(f, "message kind {kind} is not known"),
            Self::Body(error) => write!(f, "a message's body does not decode: {error}"),
            Self::TooShort => f.write_str("a message is too short"),
            Self::Bounds(what) => write!(f, "{what}"),
        }
    }
}

impl From<DecodeError> for Malformed {
    fn from(error: DecodeError) -> Self {
        Self::Body(error)
    }
}

/// Reads a payload.
pub(crate) fn decode(payload: &[u8]) -> Result<Message<'_>, Malformed> {
    let (&version, rest) = payload.split_first().ok_or(Malformed::TooShort)?;
    if version != VERSION {
        return Err(Malformed::Version(version));
    }
    let (&kind, body) = rest.split_first().ok_or(Malformed::TooShort)?;
    match kind {
        HELLO => Ok(Message::Hello(checked_hello(whole(body)?)?)),
        FRAME => Ok(Message::Frame(FrameReader::new(body)?)),
        SYNC_REQUEST => Ok(Message::SyncRequest(whole(body)?)),
        SYNC => Ok(Message::Sync(whole(body)?)),
        NOTICES => Ok(Message::Notices(whole(body)?)),
        LEAVE => Ok(Message::Leave),
        kind => Err(Malformed::Kind(kind)),
    }
}

fn whole<T: Decode<()>>(body: &[u8]) -> Result<T, Malformed> {
    let (value, read) =
        bincode::decode_from_slice(body, bincode::config::standard().with_limit::<DECODE_BYTES>())?;
    if read == body.len() { Ok(value) } else { Err(Malformed::Bounds("a message has bytes beyond its end")) }
}

fn checked_hello(hello: Hello) -> Result<Hello, Malformed> {
    if hello.nodes.len() > MAX_NODES || hello.limits.len().max(hello.notices.len()) > MAX_LIMITS {
        return Err(Malformed::Bounds("a hello lists more than 1,024 nodes or 256 limits"));
    }
    Ok(hello)
}

pub(crate) fn hello(hello: &Hello) -> Vec<u8> {
    encode(HELLO, hello)
}

pub(crate) fn sync_request(request: &SyncRequest) -> Vec<u8> {
    encode(SYNC_REQUEST, request)
}

pub(crate) fn sync(sync: &Sync) -> Vec<u8> {
    encode(SYNC, sync)
}

pub(crate) fn notices(notices: &Notices) -> Vec<u8> {
    encode(NOTICES, notices)
}

pub(crate) fn leave() -> Vec<u8> {
    vec![VERSION, LEAVE]
}

fn encode(kind: u8, body: &impl Encode) -> Vec<u8> {
    let mut encoder = EncoderImpl::new(Bytes(vec![VERSION, kind]), frame_config());
    // Writing to memory cannot fail.
    let _ = body.encode(&mut encoder);
    encoder.into_writer().0
}

struct Bytes(Vec<u8>);

impl Writer for Bytes {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// When a frame was sent, by its sender's clock; and which frame it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Header {
    /// Sender's clock in microseconds, modulo 2³².
    pub(crate) sent_at: u32,
    /// The last `sent_at` that it received from the receiver, and how many microseconds ago.
    pub(crate) echo: Option<(u32, u32)>,
}

/// A sign of life of an actor, first- or second-hand, and how far the sender has come with its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Beat {
    pub(crate) actor: WireActor,
    /// Grows with each heartbeat of the actor.
    pub(crate) beat: u32,
    pub(crate) version: u64,
}

/// One share's newest state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Item {
    pub(crate) version: u64,
    pub(crate) limit: u16,
    pub(crate) epoch: u16,
    pub(crate) key: Key,
    pub(crate) share: Share,
    /// Half milliseconds since the actor wrote it.
    pub(crate) age: u32,
    /// Milliseconds, before it was written, in which the units were spent that it made known.
    pub(crate) span_ms: u16,
    /// What the actor says of itself, where the key is a hot one.
    pub(crate) statement: Option<Statement>,
}

/// What an actor says of a hot key beside its share. Written with 8 bits of precision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Statement {
    /// Units per second that it is asked for.
    pub(crate) demand: f32,
    /// The units that it sees left; negative where it sees a debt.
    pub(crate) level: f32,
}

const CONTEXT: u8 = 1;
const SKIP: u8 = 2;
const REFUNDED: u8 = 4;
const AGE: u8 = 8;
const STATEMENT: u8 = 16;
const SPAN: u8 = 32;
const END_OF_GROUP: u8 = 0x80;
/// From this number on, a number takes more than one byte.
const LONG: u8 = 251;
/// What an item takes whose numbers are short: flags, digest, count, and the time in which it was spent.
const SHORT_BYTES: usize = 1 + 16 + 1 + 1;

const END_OF_FRAME: u8 = 0;
const GROUP: u8 = 1;

/// The most bytes that an item can take.
pub(crate) const ITEM_BYTES: usize = 1 + 3 + 3 + 9 + 16 + 9 + 9 + 5 + 3 + 4;
/// The most bytes that a group takes beside its items, and the end of the frame after it.
pub(crate) const GROUP_BYTES: usize = 1 + 3 + 5 + 9 + 1 + 9 + 1;
/// The most bytes that a beat takes.
pub(crate) const BEAT_BYTES: usize = 3 + 5 + 5 + 9;

/// Writes a frame.
pub(crate) struct FrameWriter {
    encoder: EncoderImpl<Bytes, FrameConfig>,
    at: At,
}

#[derive(Clone, Copy, Default)]
struct At {
    version: u64,
    context: Option<(u16, u16)>,
}

impl FrameWriter {
    pub(crate) fn new(header: Header, beats: &[Beat], capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.extend([VERSION, FRAME]);
        let mut writer = Self { encoder: EncoderImpl::new(Bytes(bytes), frame_config()), at: At::default() };
        writer.put(&header);
        writer.put(&(beats.len() as u16));
        beats.iter().for_each(|beat| writer.put(beat));
        writer
    }

    /// A writer of groups alone, to be [appended](Self::append) to frames.
    pub(crate) fn of_groups(capacity: usize) -> Self {
        let bytes = Bytes(Vec::with_capacity(capacity));
        Self { encoder: EncoderImpl::new(bytes, frame_config()), at: At::default() }
    }

    /// What was written.
    pub(crate) fn into_groups(self) -> Vec<u8> {
        self.encoder.into_writer().0
    }

    /// Adds groups that were written elsewhere.
    pub(crate) fn append(&mut self, groups: &[u8]) {
        let _ = self.encoder.writer().write(groups);
    }

    #[inline]
    fn put(&mut self, value: &impl Encode) {
        // Writing to memory cannot fail.
        let _ = value.encode(&mut self.encoder);
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        let _ = self.encoder.writer().write(&[byte]);
    }

    pub(crate) fn len(&mut self) -> usize {
        self.encoder.writer().0.len()
    }

    /// Starts a group of `actor`'s changes beyond version `from`.
    pub(crate) fn start_group(&mut self, actor: WireActor, from: u64) {
        self.byte(GROUP);
        self.put(&actor);
        self.put(&from);
        self.at = At { version: from, context: None };
    }

    /// Adds a share; versions must grow.
    pub(crate) fn item(&mut self, item: &Item) {
        let skip = item.version.wrapping_sub(self.at.version).wrapping_sub(1);
        let context = (item.limit, item.epoch);
        let new_context = self.at.context != Some(context);
        self.at = At { version: item.version, context: Some(context) };
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(new_context, CONTEXT)
            | flag(skip != 0, SKIP)
            | flag(item.share.refunded != 0, REFUNDED)
            | flag(item.age != 0, AGE)
            | flag(item.statement.is_some(), STATEMENT)
            | flag(item.span_ms != 0, SPAN);
        let digest = item.key.digest().to_le_bytes();
        if let (true, Ok(spent @ ..LONG), Ok(span @ ..LONG)) =
            (flags & !SPAN == 0, u8::try_from(item.share.spent), u8::try_from(item.span_ms))
        {
            self.short_item(flags, &digest, spent, span);
            return;
        }
        self.byte(flags);
        if new_context {
            self.put(&context);
        }
        if skip != 0 {
            self.put(&skip);
        }
        let _ = self.encoder.writer().write(&digest);
        self.put(&item.share.spent);
        if item.share.refunded != 0 {
            self.put(&item.share.refunded);
        }
        if item.age != 0 {
            self.put(&item.age);
        }
        if item.span_ms != 0 {
            self.put(&item.span_ms);
        }
        if let Some(statement) = item.statement {
            let _ = self.encoder.writer().write(&coarse(statement.demand));
            let _ = self.encoder.writer().write(&coarse(statement.level));
        }
    }

    /// What nearly all items look like, in one piece: numbers that take one byte each.
    #[inline]
    fn short_item(&mut self, flags: u8, digest: &[u8; 16], spent: u8, span: u8) {
        let mut bytes = [0; SHORT_BYTES];
        let [first, middle @ .., last, span_byte] = &mut bytes;
        (*first, *last, *span_byte) = (flags, spent, span);
        middle.copy_from_slice(digest);
        let length = if flags & SPAN != 0 { SHORT_BYTES } else { SHORT_BYTES - 1 };
        let _ = self.encoder.writer().write(bytes.get(..length).unwrap_or(&bytes));
    }

    /// Ends the group. Where `to` is said, the group holds every change up to that version.
    pub(crate) fn end_group(&mut self, to: Option<u64>) {
        self.byte(END_OF_GROUP);
        self.put(&to.unwrap_or(0));
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.byte(END_OF_FRAME);
        self.encoder.into_writer().0
    }
}

/// The upper half of a number's bits: 8 of exponent and 7 of mantissa, right to half a percent (bfloat16).
fn coarse(number: f32) -> [u8; 2] {
    // Half of what is cut off, so that it is rounded and not cut.
    ((number.to_bits().saturating_add(0x7fff) >> 16) as u16).to_le_bytes()
}

fn fine(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// Reads a frame, a part at a time.
pub(crate) struct FrameReader<'a> {
    pub(crate) header: Header,
    decoder: DecoderImpl<SliceReader<'a>, FrameConfig, ()>,
    beats_left: u16,
    group: Option<At>,
}

/// What comes next in a frame.
pub(crate) enum Part {
    Beat(Beat),
    Group {
        actor: WireActor,
        from: u64,
    },
    Item(Item),
    /// The end of a group: every change up to `to` was in it, unless `to` is 0.
    GroupEnd {
        to: u64,
    },
}

impl<'a> FrameReader<'a> {
    fn new(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut decoder = DecoderImpl::new(SliceReader::new(body), frame_config(), ());
        let header = Header::decode(&mut decoder)?;
        let beats_left = u16::decode(&mut decoder)?;
        Ok(Self { header, decoder, beats_left, group: None })
    }

    /// The next part, or `None` at the end of the frame.
    pub(crate) fn next(&mut self) -> Result<Option<Part>, Malformed> {
        if self.beats_left > 0 {
            self.beats_left -= 1;
            return Ok(Some(Part::Beat(self.get()?)));
        }
        match self.group {
            Some(at) => self.next_in_group(at).map(Some),
            None => self.next_group(),
        }
    }

    #[inline]
    fn get<T: Decode<()>>(&mut self) -> Result<T, Malformed> {
        Ok(T::decode(&mut self.decoder)?)
    }

    fn next_group(&mut self) -> Result<Option<Part>, Malformed> {
        match self.get::<u8>()? {
            END_OF_FRAME => Ok(None),
            GROUP => {
                let actor = self.get()?;
                let from = self.get()?;
                self.group = Some(At { version: from, context: None });
                Ok(Some(Part::Group { actor, from }))
            }
            _ => Err(Malformed::Bounds("a frame has neither a group nor its end where one must be")),
        }
    }

    fn next_in_group(&mut self, at: At) -> Result<Part, Malformed> {
        if let Some(item) = self.next_short(at) {
            return Ok(Part::Item(item));
        }
        let flags: u8 = self.get()?;
        if flags == END_OF_GROUP {
            self.group = None;
            return Ok(Part::GroupEnd { to: self.get::<u64>()?.min(MAX_VERSION) });
        }
        let context = if flags & CONTEXT != 0 { Some(self.get()?) } else { at.context };
        let Some((limit, epoch)) = context else {
            return Err(Malformed::Bounds("a share names neither limit nor epoch"));
        };
        let skip = if flags & SKIP != 0 { self.get::<u64>()? } else { 0 };
        let version = at.version.saturating_add(skip).saturating_add(1);
        if version > MAX_VERSION {
            return Err(Malformed::Bounds("a share has a version that no actor reaches"));
        }
        let digest = u128::from_le_bytes(self.get::<[u8; 16]>()?);
        let spent = self.get()?;
        let refunded = if flags & REFUNDED != 0 { self.get()? } else { 0 };
        let age = if flags & AGE != 0 { self.get()? } else { 0 };
        let span_ms = if flags & SPAN != 0 { self.get()? } else { 0 };
        let statement = match flags & STATEMENT {
            0 => None,
            _ => Some(Statement { demand: fine(self.get()?), level: fine(self.get()?) }),
        };
        self.group = Some(At { version, context });
        let key = Key::from_digest(digest);
        Ok(Part::Item(Item {
            version,
            limit,
            epoch,
            key,
            share: Share { spent, refunded },
            age,
            span_ms,
            statement,
        }))
    }
}

impl FrameReader<'_> {
    /// The next item if it is one of those that nearly all are: of the same limit and epoch as the last, with numbers that
    /// take one byte each.
    #[inline]
    fn next_short(&mut self, at: At) -> Option<Item> {
        let bytes = self.decoder.reader().peek_read(SHORT_BYTES)?;
        let (&[flags, ref digest @ .., spent, span], (limit, epoch)) =
            (<&[u8; SHORT_BYTES]>::try_from(bytes).ok()?, at.context?);
        let with_span = flags & SPAN != 0;
        if flags & !SPAN != 0 || spent >= LONG || (with_span && span >= LONG) || at.version >= MAX_VERSION {
            return None;
        }
        let key = Key::from_digest(u128::from_le_bytes(*digest));
        let version = at.version + 1;
        self.decoder.reader().consume(if with_span { SHORT_BYTES } else { SHORT_BYTES - 1 });
        self.group = Some(At { version, ..at });
        Some(Item {
            version,
            limit,
            epoch,
            key,
            share: Share { spent: spent.into(), refunded: 0 },
            age: 0,
            span_ms: if with_span { span.into() } else { 0 },
            statement: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(count: u64) -> Vec<Item> {
        (0..count)
            .map(|i| Item {
                version: 1_000 + i,
                limit: 0,
                epoch: 7,
                key: Key::from_digest(u128::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)),
                share: Share { spent: i % 400, refunded: 0 },
                age: 0,
                span_ms: 100,
                statement: None,
            })
            .collect()
    }

    fn read(payload: &[u8]) -> (Header, Vec<Item>, Vec<Beat>, u64) {
        let Message::Frame(mut reader) = decode(payload).unwrap() else { panic!("not a frame") };
        let (mut items, mut beats, mut end) = (Vec::new(), Vec::new(), 0);
        while let Some(part) = reader.next().unwrap() {
            match part {
                Part::Beat(beat) => beats.push(beat),
                Part::Group { .. } => {}
                Part::Item(item) => items.push(item),
                Part::GroupEnd { to } => end = to,
            }
        }
        (reader.header, items, beats, end)
    }

    #[test]
    fn what_is_written_is_read() {
        let actor = WireActor { node: 3, incarnation: 0xdead_beef };
        let header = Header { sent_at: 5, echo: Some((6, 7)) };
        let beats = [Beat { actor, beat: 9, version: 1 << 40 }];
        let mut written = items(5);
        written[1] = Item { share: Share { spent: u64::MAX, refunded: 3 }, ..written[1] };
        written[2] = Item {
            limit: 4,
            age: 70_000,
            statement: Some(Statement { demand: 12.5, level: -3.0 }),
            ..written[2]
        };
        written[4].version += 100;
        let mut writer = FrameWriter::new(header, &beats, 0);
        writer.start_group(actor, 999);
        written.iter().for_each(|item| writer.item(item));
        writer.end_group(Some(2_000));
        assert_eq!(read(&writer.finish()), (header, written, beats.to_vec(), 2_000));
    }

    #[test]
    fn a_share_takes_twenty_one_bytes_in_a_batch_of_a_thousand() {
        let actor = WireActor { node: 3, incarnation: 0xdead_beef };
        let mut writer = FrameWriter::new(Header::default(), &[], 0);
        writer.start_group(actor, 999);
        items(1_000).iter().for_each(|item| writer.item(item));
        writer.end_group(Some(2_000));
        let bytes = writer.finish().len() as f64 / 1_000.0;
        assert!(bytes <= 21.0, "{bytes} bytes a share");
    }

    #[test]
    fn a_frame_of_any_length_is_read_without_meeting_the_decoders_limit() {
        let mut writer = FrameWriter::new(Header::default(), &[], 0);
        writer.start_group(WireActor { node: 0, incarnation: 0 }, 999);
        items(200_000).iter().for_each(|item| writer.item(item));
        writer.end_group(None);
        assert_eq!(read(&writer.finish()).1.len(), 200_000);
    }

    #[test]
    fn claimed_lengths_allocate_nothing() {
        // A hello whose cluster name claims 2^60 bytes.
        let bomb = [VERSION, HELLO, 253, 0, 0, 0, 0, 0, 0, 0, 16];
        assert!(decode(&bomb).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, kind in 0_u8..20) {
            let mut payload = vec![VERSION, kind];
            payload.extend(bytes);
            if let Ok(Message::Frame(mut reader)) = decode(&payload) {
                while let Ok(Some(_)) = reader.next() {}
            }
        }
    }
}
