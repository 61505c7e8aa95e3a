//! How a node stands to its fleet, as far as its checks have to know.

use crate::decision::BasisWord;

/// What a table is told about the fleet; in one word, so that a check reads it in one load. The word also says what else keeps
/// a check from the [short way](plain).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stance {
    pub(crate) basis: BasisWord,
    pub(crate) verdict: Verdict,
}

/// Whether the level decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The level decides.
    Level,
    /// Everything is admitted, and counted.
    Open,
    /// Everything is refused.
    Closed,
    /// The level decides, and more than a compare-and-swap belongs to it.
    Careful,
}

impl Stance {
    pub(super) const ALONE: u32 = 0;
    pub(super) const VERDICT: u32 = 0x0300;

    pub(super) fn encode(self) -> u32 {
        let verdict = match self.verdict {
            Verdict::Level => 0,
            Verdict::Open => 1,
            Verdict::Closed => 2,
            Verdict::Careful => 3,
        };
        self.basis.0 | verdict << 8
    }

    #[inline]
    pub(super) fn decode(word: u32) -> Self {
        let basis = BasisWord(word & BasisWord::BITS);
        let verdict = match word >> 8 & 0x3 {
            0 => Verdict::Level,
            1 => Verdict::Open,
            2 => Verdict::Closed,
            _ => Verdict::Careful,
        };
        Self { basis, verdict }
    }
}
