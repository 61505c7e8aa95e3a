//! Calls whose price is known only afterwards, as those of a language model: the most that a call may cost is reserved before
//! it, and settled on what it did cost.
//!
//! Two limits hold together: so many calls a minute, and so many tokens a minute and a day. Run it:
//! `cargo run --example priced_calls`.

use ratemesh::{Limit, LimitError, Limiter, Quota, Refusal, reserve_all};

/// A call that was made.
struct Answer {
    tokens: u64,
}

/// The upstream: what it charges, nobody knows before.
fn upstream(prompt: &str) -> Result<Answer, &'static str> {
    match prompt {
        "short" => Ok(Answer { tokens: 120 }),
        "long" => Ok(Answer { tokens: 900 }),
        // More than was asked for at most.
        "chatty" => Ok(Answer { tokens: 1_300 }),
        _ => Err("the upstream is down"),
    }
}

struct Budget {
    calls: Limiter,
    tokens: Limiter,
}

impl Budget {
    fn call(&self, tenant: &str, prompt: &str, most: u64) -> String {
        let asks = [(&self.calls, tenant, 1), (&self.tokens, tenant, most)];
        let permits = match reserve_all(asks) {
            Ok(permits) => permits,
            Err(refused) => {
                return match refused.refusal {
                    Refusal::Cost(error) => format!("never: {error}"),
                    refusal => format!("later: {refusal}"),
                };
            }
        };
        match upstream(prompt) {
            // A call that failed is free, and the call itself is given back, too.
            Err(error) => {
                permits.refund();
                format!("failed: {error}")
            }
            Ok(answer) => {
                let mut outcome = format!("{} tokens", answer.tokens);
                for (permit, actual) in permits.into_iter().zip([1, answer.tokens]) {
                    let settled = permit.settle(actual);
                    if settled.spent() + settled.given_back() > 0 {
                        let (more, back) = (settled.spent(), settled.given_back());
                        outcome += &format!(", {more} more than reserved, {back} given back");
                    }
                }
                outcome
            }
        }
    }
}

fn main() -> Result<(), LimitError> {
    let calls = Limit::token_bucket("calls", Quota::per_minute(60)).build()?;
    let tokens =
        Limit::token_bucket("tokens", Quota::per_minute(3_000)).and(Quota::per_day(100_000)).build()?;
    let budget = Budget { calls: Limiter::new(calls), tokens: Limiter::new(tokens) };

    for (prompt, most) in [
        ("short", 1_000),
        ("broken", 1_000),
        ("long", 1_000),
        ("chatty", 1_000),
        ("chatty", 600),
        ("short", 1_000),
        ("endless", 5_000),
    ] {
        let outcome = budget.call("acme", prompt, most);
        let left = (budget.calls.peek("acme").remaining(), budget.tokens.peek("acme").remaining());
        println!("{prompt:>8}, at most {most:>5}: {outcome}; left: {} calls, {} tokens", left.0, left.1);
    }
    // 120 + 900 + 1,300 + 1,300 are 620 over the 3,000, and are owed; the failed call and the refused ones cost nothing.
    let (calls, tokens) =
        (budget.calls.peek("acme"), budget.tokens.peek_cost("acme", 1_000).expect("1,000 can pass"));
    assert!((56..=57).contains(&calls.remaining()) && !tokens.is_allowed());
    let wait = tokens.retry_after().expect("it is refused");
    println!("a call for 1,000 tokens passes again in {wait:.0?}");
    assert!((30.0..=32.5).contains(&wait.as_secs_f64()));
    Ok(())
}
