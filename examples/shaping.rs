//! A paid upstream that takes 20 calls a second and no more: a leaky bucket lets calls through one by one, evenly, and those
//! that come faster wait in line. What would wait too long is refused at once, and a dear call takes as many places as it costs.
//!
//! Run it: `cargo run --example shaping`.

use std::time::{Duration, Instant};

use ratemesh::{Limit, Limiter, Quota, Refusal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let upstream = Limiter::new(Limit::leaky_bucket("upstream", Quota::per_second(20)).queue(12).build()?);
    #[allow(clippy::disallowed_methods, reason = "the example shows when calls go out")]
    let start = Instant::now();

    // Twelve callers at once. The sixth sends a batch that counts as four calls.
    let mut callers = tokio::task::JoinSet::new();
    for caller in 1..=12 {
        let upstream = upstream.clone();
        callers.spawn(async move {
            let cost = if caller == 6 { 4 } else { 1 };
            let sent = match upstream.acquire_timeout("tenant", cost, Duration::from_secs(1)).await {
                Ok(_permit) => Ok(start.elapsed()),
                Err(Refusal::QueueFull(_)) => Err("refused: the line is full"),
                Err(_) => Err("refused: it would come too late"),
            };
            (caller, sent)
        });
        tokio::task::yield_now().await;
    }
    let mut outcomes = callers.join_all().await;
    outcomes.sort_by_key(|(caller, _)| *caller);
    let mut sent = Vec::new();
    for (caller, outcome) in outcomes {
        match outcome {
            Ok(at) => {
                println!("caller {caller:2}: sent after {:3} ms", at.as_millis());
                sent.push(at);
            }
            Err(why) => println!("caller {caller:2}: {why}"),
        }
    }

    // No two calls closer than the quota allows, and the batch has kept four places free behind it.
    sent.sort();
    let closest = sent.windows(2).map(|pair| pair[1] - pair[0]).min().ok_or("nothing was sent")?;
    println!("{} sent, the closest two {} ms apart", sent.len(), closest.as_millis());
    assert!(sent.len() >= 9, "the line holds twelve units");
    assert!(closest >= Duration::from_millis(40), "calls go out evenly");
    Ok(())
}
