//! The months of the Gregorian calendar, in UTC, as [fixed windows](super::fixed_window) go by them.
//!
//! Days need nothing of their own: without leap seconds, as Unix time counts, a window of 24 hours aligned to the epoch
//! is a day.

/// Nanoseconds in a day.
const DAY: u64 = 86_400_000_000_000;
/// Days from 0000-03-01, the first day of the algorithm's calendar, to 1970-01-01.
const DAYS_BEFORE_1970: u64 = 719_468;
/// Months from 0000-03-01 to 1970-01-01.
const MONTHS_BEFORE_1970: u64 = 1_970 * 12 - 2;
const DAYS_IN_400_YEARS: u64 = 146_097;

/// Months since January 1970, at a time in nanoseconds of Unix time.
pub(super) fn month(unix_nanos: u64) -> u64 {
    month_of(unix_nanos / DAY)
}

/// When a month begins, in nanoseconds of Unix time; saturates.
pub(super) fn beginning(month: u64) -> u64 {
    first_day(month).saturating_mul(DAY)
}

/// Months from January 1970 to the month of a day, which is counted from 1970-01-01.
///
/// After Hinnant, *chrono-Compatible Low-Level Date Algorithms* (2013), whose years begin in March so that the leap day
/// is the last of them.
fn month_of(day: u64) -> u64 {
    let day = day + DAYS_BEFORE_1970;
    let (era, day) = (day / DAYS_IN_400_YEARS, day % DAYS_IN_400_YEARS);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    (era * 400 + year) * 12 + (5 * day + 2) / 153 - MONTHS_BEFORE_1970
}

/// The first day of a month, the inverse of [`month_of`]; no later than some hundred million years from now.
fn first_day(month: u64) -> u64 {
    let month = month.min(1 << 32) + MONTHS_BEFORE_1970;
    let (year, month) = (month / 12, month % 12);
    let (era, year) = (year / 400, year % 400);
    let day = (153 * month + 2) / 5 + 365 * year + year / 4 - year / 100;
    era * DAYS_IN_400_YEARS + day - DAYS_BEFORE_1970
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{algorithm::fixed_window::Steps, time::WallTime};

    #[test]
    fn months_begin_on_their_first_day() {
        let months = Steps::months(10);
        let at = |days: u64, nanos: u64| WallTime::from_unix_nanos(days * DAY + nanos);
        // 1970-01, 1970-02, 1970-03, 1972-03, 2000-03, 2024-03 and 2100-03, as any calendar has them.
        for (day, month) in
            [(0, 0), (31, 1), (59, 2), (790, 26), (11_017, 362), (19_783, 650), (47_541, 1_562)]
        {
            assert_eq!(first_day(month), day, "{month}");
            assert_eq!(months.window(at(day, 0)), month);
            if day > 0 {
                assert_eq!(months.window(at(day - 1, DAY - 1)), month - 1);
                assert_eq!(months.nanos_to_earn(10, at(day - 1, DAY - 5)), 5);
            }
        }
        for day in 0..200_000 {
            let month = month_of(day);
            assert!(first_day(month) <= day && day < first_day(month + 1), "{day}");
        }
        assert_eq!(months.nanos_to_earn(11, at(31, 0)), (28 + 31) * DAY);
        assert_eq!(months.earned_within(1, at(31, 0)), 10);
        assert_eq!((months.nanos_into(at(31, 0)), months.nanos_into(at(33, 7))), (0, 2 * DAY + 7));
        assert_eq!(months.nanos_to_earn(u64::MAX, at(31, 0)), u64::MAX - 31 * DAY);
    }
}
