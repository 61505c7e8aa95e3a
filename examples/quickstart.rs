//! A limit in one process: no network, no runtime, nothing to set up.

use ratemesh::{Limit, Limiter, Quota};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Five at once, and then ten a second, for each key.
    let limit = Limit::token_bucket("logins", Quota::per_second(10)).burst(5).build()?;
    let limiter = Limiter::new(limit);

    for attempt in 1..=7 {
        let decision = limiter.check("alice");
        match decision.retry_after() {
            None => println!("attempt {attempt}: go ahead, {} left", decision.remaining()),
            Some(wait) => println!("attempt {attempt}: wait for {wait:.0?}"),
        }
    }
    let decision = limiter.check_cost("bob", 4)?;
    println!("bob spends 4 at once: {}", if decision.is_allowed() { "go ahead" } else { "wait" });
    Ok(())
}
