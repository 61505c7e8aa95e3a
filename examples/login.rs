//! Failed logins, counted by address and by e-mail: both have to let an attempt pass, or neither is spent on, and a login
//! that succeeds gives its units back. An address that goes on beyond its limit is banned for a day.
//!
//! The attempt is paid for before the password is looked at, so that a hundred attempts at once do not slip through
//! together. Run it: `cargo run --example login`.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use ratemesh::{Limit, LimitError, Limiter, Quota, Refusal, RefusedBy, reserve_all};

/// The limits on failures.
struct Logins {
    by_address: Limiter,
    by_email: Limiter,
}

/// What became of an attempt.
#[derive(Debug, PartialEq, Eq)]
enum Attempt {
    Welcome,
    WrongPassword,
    /// Not even looked at.
    Refused(&'static str),
    /// Nor for so long from now on.
    Banned(Duration),
}

impl Logins {
    fn new() -> Result<Self, LimitError> {
        // An address may be that of a whole office; an account is one person's. Whoever fails beyond the first is out for
        // a day; were an account banned, anybody could keep its owner out.
        let by_address = Limit::token_bucket("failed-by-address", Quota::per_minute(30))
            .and(Quota::per_day(200))
            .ban_on_exceed(Duration::from_secs(86_400));
        let by_email = Limit::token_bucket("failed-by-email", Quota::per_hour(5));
        Ok(Self { by_address: Limiter::new(by_address.build()?), by_email: Limiter::new(by_email.build()?) })
    }

    fn attempt(&self, address: IpAddr, email: &str, password: &str) -> Attempt {
        // Two keys of two types, so each is digested first.
        let (address, email) = (self.by_address.key(address), self.by_email.key(email));
        let permits = match reserve_all([(&self.by_address, address, 1), (&self.by_email, email, 1)]) {
            Ok(permits) => permits,
            Err(RefusedBy { refusal: Refusal::Denied(decision), .. }) if decision.is_banned() => {
                return Attempt::Banned(decision.retry_after().unwrap_or_default());
            }
            Err(RefusedBy { index: 0, .. }) => return Attempt::Refused("by address"),
            Err(_) => return Attempt::Refused("by e-mail"),
        };
        if password == "correct horse battery staple" {
            // No failure, so nothing is counted.
            permits.refund();
            Attempt::Welcome
        } else {
            // Dropped, the permits keep what they have cost.
            Attempt::WrongPassword
        }
    }

    fn failures_left(&self, address: IpAddr, email: &str) -> (u64, u64) {
        (self.by_address.peek(address).remaining(), self.by_email.peek(email).remaining())
    }
}

fn main() -> Result<(), LimitError> {
    let logins = Logins::new()?;
    let office = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let right = "correct horse battery staple";

    for morning in 1..=50 {
        assert_eq!(logins.attempt(office, "alice@example.com", right), Attempt::Welcome, "login {morning}");
    }
    println!(
        "50 logins of Alice's succeed; failures left: {:?}",
        logins.failures_left(office, "alice@example.com")
    );

    for guess in 1..=7 {
        let outcome = logins.attempt(office, "bob@example.com", "123456");
        let (by_address, by_email) = logins.failures_left(office, "bob@example.com");
        println!(
            "guess {guess} at Bob's password: {outcome:?}; left by address {by_address}, by e-mail {by_email}"
        );
        let wanted = if guess <= 5 { Attempt::WrongPassword } else { Attempt::Refused("by e-mail") };
        assert_eq!(outcome, wanted);
    }
    // What was refused by e-mail has cost the address nothing, and Alice gets in.
    assert_eq!(logins.failures_left(office, "bob@example.com"), (25, 0));
    assert_eq!(logins.attempt(office, "alice@example.com", right), Attempt::Welcome);
    println!("Alice still gets in from the same address");

    let attacker = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));
    let outcomes: Vec<_> =
        (1..=32).map(|guess| logins.attempt(attacker, &format!("{guess}@example.com"), "123456")).collect();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Attempt::WrongPassword).count(), 30);
    assert!(matches!(outcomes.last(), Some(Attempt::Banned(rest)) if rest.as_secs() > 86_000));
    // Whatever it knows by now.
    assert!(matches!(logins.attempt(attacker, "alice@example.com", right), Attempt::Banned(_)));
    assert_eq!(logins.attempt(office, "alice@example.com", right), Attempt::Welcome);
    println!("another address guesses at 32 accounts: {:?}", outcomes.last());
    Ok(())
}
