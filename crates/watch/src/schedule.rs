// SPDX-License-Identifier: Apache-2.0
//! The hours of measuring, by the local time of day, and an operator's orders against them.
//!
//! Pure: the caller gives the time. There is no timer. Each call decides by the time of day alone, so that a
//! step of the clock or a day of 23 hours needs no special case.

use std::fmt;

use jiff::civil::Time;

/// From one time of day to another, perhaps over midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    arm: Time,
    disarm: Time,
}

/// Why two texts are not hours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoursError {
    NoTime { text: String },
    Same,
}

impl fmt::Display for HoursError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            HoursError::NoTime { text } => {
                write!(f, "`{text}` is not a time of day: write it as 08:00 or 16:30:00")
            }
            HoursError::Same => {
                write!(f, "arming and disarming at the same time of day: give two different ones")
            }
        }
    }
}

impl Hours {
    /// From `08:00` and `16:30`.
    pub fn parse(arm: &str, disarm: &str) -> Result<Self, HoursError> {
        let hours = Hours { arm: time(arm)?, disarm: time(disarm)? };
        if hours.arm == hours.disarm { Err(HoursError::Same) } else { Ok(hours) }
    }

    fn contain(self, now: Time) -> bool {
        match self.arm < self.disarm {
            true => self.arm <= now && now < self.disarm,
            false => self.arm <= now || now < self.disarm,
        }
    }
}

fn time(text: &str) -> Result<Time, HoursError> {
    let wrong = || HoursError::NoTime { text: text.chars().take(32).collect() };
    let plain = text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b':');
    if plain { text.parse().map_err(|_| wrong()) } else { Err(wrong()) }
}

/// Whether to be armed now: by the hours, unless an operator gave another order since they last changed it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Schedule {
    hours: Option<Hours>,
    /// The order, and the state by the hours at that time.
    order: Option<(bool, bool)>,
}

impl Schedule {
    /// Without hours: armed, unless an order says otherwise.
    pub fn new(hours: Option<Hours>) -> Self {
        Schedule { hours, order: None }
    }

    /// Sets other hours, and drops the order.
    pub fn set_hours(&mut self, hours: Option<Hours>) {
        if self.hours != hours {
            *self = Schedule::new(hours);
        }
    }

    /// Takes an order to be armed or not. It holds until the hours change the state the next time.
    pub fn override_until_change(&mut self, armed: bool, now: Time) {
        self.order = Some((armed, self.by_hours(now)));
    }

    pub fn is_armed(&mut self, now: Time) -> bool {
        let by_hours = self.by_hours(now);
        match self.order {
            Some((armed, then)) if then == by_hours => armed,
            _ => {
                self.order = None;
                by_hours
            }
        }
    }

    fn by_hours(&self, now: Time) -> bool {
        self.hours.is_none_or(|hours| hours.contain(now))
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::time as at;

    use super::*;

    fn schedule(arm: &str, disarm: &str) -> Schedule {
        Schedule::new(Some(Hours::parse(arm, disarm).expect("hours")))
    }

    #[test]
    fn hours_are_exact_to_the_second() {
        let mut day = schedule("08:00", "16:30");
        let armed = [at(7, 59, 59, 0), at(8, 0, 0, 0), at(16, 29, 59, 0), at(16, 30, 0, 0)];
        assert_eq!(armed.map(|now| day.is_armed(now)), [false, true, true, false]);
    }

    #[test]
    fn hours_may_span_midnight() {
        let mut night = schedule("22:00", "06:00");
        let armed = [at(21, 0, 0, 0), at(23, 0, 0, 0), at(0, 0, 0, 0), at(6, 0, 0, 0)];
        assert_eq!(armed.map(|now| night.is_armed(now)), [false, true, true, false]);
    }

    #[test]
    fn order_holds_until_the_hours_change_the_state() {
        let mut day = schedule("08:00", "16:30");
        day.override_until_change(false, at(9, 0, 0, 0));
        assert!(!day.is_armed(at(16, 0, 0, 0)));
        assert!(!day.is_armed(at(17, 0, 0, 0)), "the hours agree, and the order is over");
        assert!(day.is_armed(at(8, 0, 0, 0)), "the next morning");
        let mut always = Schedule::new(None);
        always.override_until_change(false, at(9, 0, 0, 0));
        assert!(!always.is_armed(at(8, 0, 0, 0)));
    }

    #[test]
    fn step_of_the_clock_is_only_another_time() {
        let mut day = schedule("08:00", "16:30");
        assert!(day.is_armed(at(9, 0, 0, 0)));
        assert!(!day.is_armed(at(7, 0, 0, 0)), "set back");
        assert!(day.is_armed(at(12, 0, 0, 0)), "set forward");
    }

    #[test]
    fn times_are_times_of_day() {
        for wrong in ["8", "", "25:00", "08:60", "noon", "08:00Z", "2026-01-01", "08:00:00.5"] {
            assert!(Hours::parse(wrong, "09:00").is_err(), "{wrong}");
        }
        assert_eq!(Hours::parse("08:00", "08:00:00"), Err(HoursError::Same));
        assert!(Hours::parse("08:00:01", "08:00").is_ok());
    }
}
