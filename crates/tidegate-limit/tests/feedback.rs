//! Answers as they came over the wire, and what is made of them; then garbage.

use std::time::Duration;

use jiff::Timestamp;
use tidegate_limit::feedback::{DELAY_MAX, Feedback, Per, Provider, Stop, Unit, Verdict, Which};

const NONE: [(&str, &str); 0] = [];

fn now() -> Timestamp {
    "2026-11-15T20:00:00Z".parse().unwrap()
}

fn read(provider: Provider, status: u16, headers: &[(&str, &str)], body: &str) -> Feedback {
    provider.read(status, &headers.to_vec(), body.as_bytes(), now())
}

fn verdict(provider: Provider, status: u16, headers: &[(&str, &str)], body: &str) -> Verdict {
    read(provider, status, headers, body).verdict
}

fn wait(millis: u64, limits: &[Which]) -> Verdict {
    Verdict::Wait { delay: Duration::from_millis(millis), limits: limits.to_vec() }
}

const RPM: Which = Which { unit: Unit::Requests, per: Some(Per::Minute) };
const TPM: Which = Which { unit: Unit::Tokens, per: Some(Per::Minute) };
const RPD: Which = Which { unit: Unit::Requests, per: Some(Per::Day) };
const INPUT_TPM: Which = Which { unit: Unit::InputTokens, per: Some(Per::Minute) };

mod openai {
    use super::*;
    use Provider::OpenAi;

    const TPM_429: &str = r#"{"error":{"message":"Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 200000, Used 198414, Requested 2829. Please try again in 372ms. Visit https://platform.openai.com/account/rate-limits to learn more.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#;

    #[test]
    fn a_throttled_request_waits_exactly_as_long_as_the_message_says() {
        assert_eq!(verdict(OpenAi, 429, &[], TPM_429), wait(372, &[TPM]));
    }

    #[test]
    fn a_rounded_header_does_not_lengthen_the_exact_delay_but_another_limits_header_does() {
        assert_eq!(verdict(OpenAi, 429, &[("retry-after", "1")], TPM_429), wait(372, &[TPM]));
        assert_eq!(
            verdict(OpenAi, 429, &[("retry-after-ms", "400"), ("retry-after", "1")], TPM_429),
            wait(400, &[TPM])
        );
        assert_eq!(verdict(OpenAi, 429, &[("Retry-After", "60")], TPM_429), wait(60_000, &[TPM]));
    }

    #[test]
    fn a_day_that_refills_continuously_is_waited_for_not_parked() {
        let body = r#"{"error":{"message":"Rate limit reached for gpt-3.5-turbo in organization org-x on requests per day (RPD): Limit 10000, Used 10000, Requested 1. Please try again in 8.64s. Visit …","type":"requests","param":null,"code":"rate_limit_exceeded"}}"#;
        assert_eq!(verdict(OpenAi, 429, &[], body), wait(8_640, &[RPD]));
        let body = r#"{"error":{"message":"… on requests per day (RPD): Limit 200, Used 200, Requested 1. Please try again in 7m12s. Visit …","type":"requests","code":"rate_limit_exceeded"}}"#;
        assert_eq!(verdict(OpenAi, 429, &[], body), wait(432_000, &[RPD]));
    }

    #[test]
    fn older_messages_are_understood() {
        let body = r#"{"error":{"message":"Rate limit reached for default-gpt-3.5-turbo in organization org-x on requests per min. Limit: 3 / min. Please try again in 20s. Contact us through our help center","type":"requests"}}"#;
        assert_eq!(verdict(OpenAi, 429, &[], body), wait(20_000, &[RPM]));
        let body = r#"{"error":{"message":"Rate limit reached for default-global-with-image-limits on requests per min. Limit: 60.000000 / min. Current: 70.000000 / min.","type":"requests"}}"#;
        assert_eq!(verdict(OpenAi, 429, &[], body), Verdict::BackOff { limits: vec![RPM] });
    }

    #[test]
    fn insufficient_quota_ends_it_whatever_delay_comes_along() {
        let body = r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#;
        let headers = [("retry-after", "20")];
        assert_eq!(verdict(OpenAi, 429, &headers, body), Verdict::Stop(Stop::InsufficientQuota));
        assert_eq!(verdict(OpenAi, 402, &NONE, ""), Verdict::Stop(Stop::InsufficientQuota));
        let body = r#"{"error":{"message":"Billing hard limit has been reached","type":"invalid_request_error","code":"billing_hard_limit_reached"}}"#;
        assert_eq!(verdict(OpenAi, 400, &NONE, body), Verdict::Stop(Stop::SpendCap { until: None }));
    }

    #[test]
    fn a_request_above_the_limit_is_told_apart_from_one_that_has_to_wait() {
        let body = r#"{"error":{"message":"Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 41210. The input or output tokens must be reduced in order to run successfully.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#;
        assert_eq!(verdict(OpenAi, 429, &[], body), Verdict::TooLarge { requested: Some(41_210), limit: Some(30_000) });
    }

    #[test]
    fn a_litellm_proxy_hides_the_delay_under_a_name_of_its_own() {
        let body = r#"{"error":{"message":"Max parallel request limit reached","type":"throttling_error","param":null,"code":"429"}}"#;
        assert_eq!(verdict(OpenAi, 429, &[("llm_provider-retry-after", "60")], body), wait(60_000, &[]));
        assert_eq!(verdict(OpenAi, 429, &[], body), Verdict::BackOff { limits: vec![] });
    }

    #[test]
    fn counters_are_read_from_every_answer_and_reset_is_no_delay() {
        let headers = [
            ("x-ratelimit-limit-requests", "500"),
            ("x-ratelimit-remaining-requests", "499"),
            ("x-ratelimit-reset-requests", "120ms"),
            ("x-ratelimit-limit-tokens", "30000"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ];
        let feedback = read(OpenAi, 200, &headers, "");
        assert_eq!(feedback.verdict, Verdict::Proceed);
        let read: Vec<_> = feedback.quotas.iter().map(|q| (q.which.unit, q.capacity, q.remaining, q.full_in)).collect();
        assert_eq!(
            read,
            [
                (Unit::Requests, Some(500), 499, Some(Duration::from_millis(120))),
                (Unit::Tokens, Some(30_000), 0, Some(Duration::from_secs(360))),
            ]
        );
        // On a refusal without a word about the delay, the counter at zero tells which, and its reset still is none.
        let tokens = Which { unit: Unit::Tokens, per: None };
        assert_eq!(verdict(OpenAi, 429, &headers, ""), Verdict::BackOff { limits: vec![tokens] });
    }

    #[test]
    fn counters_that_make_no_sense_are_ignored() {
        for (limit, remaining, reset) in [
            ("-1", "-1", "-1"),
            ("0", "0", "0"),
            ("100", "-1", "1s"),
            ("100", "101", "1s"),
            ("many", "3", "1s"),
            ("100", "99999999999999999999999", "1s"),
        ] {
            let headers = [
                ("x-ratelimit-limit-requests", limit),
                ("x-ratelimit-remaining-requests", remaining),
                ("x-ratelimit-reset-requests", reset),
            ];
            assert_eq!(read(OpenAi, 200, &headers, "").quotas, [], "{headers:?}");
        }
        assert_eq!(read(OpenAi, 200, &[("x-ratelimit-remaining-tokens", "0")], "").quotas, []);
    }

    #[test]
    fn an_overloaded_server_is_not_a_limit() {
        let body = r#"{"error":{"message":"Slow down","type":"service_unavailable"}}"#;
        assert_eq!(verdict(OpenAi, 503, &[], body), Verdict::Overloaded { delay: None });
        let delay = Some(Duration::from_secs(5));
        assert_eq!(verdict(OpenAi, 503, &[("retry-after", "5")], body), Verdict::Overloaded { delay });
        assert_eq!(verdict(OpenAi, 404, &[], ""), Verdict::Other { status: 404 });
    }

    #[test]
    fn azure_spells_its_delay_out() {
        let body = r#"{"error":{"code":"429","message":"Requests to the ChatCompletions_Create Operation have exceeded call rate limit of your current OpenAI S0 pricing tier. Please retry after 6 seconds."}}"#;
        assert_eq!(verdict(OpenAi, 429, &[("retry-after", "6")], body), wait(6_000, &[]));
        assert_eq!(verdict(OpenAi, 429, &[], body), wait(6_000, &[]));
    }
}

mod anthropic {
    use super::*;
    use Provider::Anthropic;

    const RATE: &str = r#"{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your organization's rate limit of 50,000 input tokens per minute."},"request_id":"req_1"}"#;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(verdict(Anthropic, 429, &[("retry-after", "20")], RATE), wait(20_000, &[INPUT_TPM]));
        let date = [("retry-after", "Sun, 15 Nov 2026 20:00:30 GMT")];
        assert_eq!(verdict(Anthropic, 429, &date, RATE), wait(30_000, &[INPUT_TPM]));
        // The server's clock counts, not ours.
        let skewed = [("retry-after", "Sun, 15 Nov 2026 19:30:30 GMT"), ("date", "Sun, 15 Nov 2026 19:30:00 GMT")];
        assert_eq!(verdict(Anthropic, 429, &skewed, RATE), wait(30_000, &[INPUT_TPM]));
    }

    #[test]
    fn counters_have_dates_and_the_one_at_zero_tells_which() {
        let headers = [
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "0"),
            ("anthropic-ratelimit-requests-reset", "2026-11-15T20:00:41Z"),
            ("anthropic-ratelimit-input-tokens-limit", "50000"),
            ("anthropic-ratelimit-input-tokens-remaining", "12000"),
            ("anthropic-ratelimit-input-tokens-reset", "2026-11-15T20:00:46Z"),
            ("anthropic-ratelimit-output-tokens-limit", "10000"),
            ("anthropic-ratelimit-output-tokens-remaining", "10000"),
            ("anthropic-ratelimit-output-tokens-reset", "2026-11-15T20:00:00Z"),
            ("retry-after", "2"),
        ];
        let feedback = read(Anthropic, 429, &headers, RATE);
        assert_eq!(feedback.verdict, wait(2_000, &[RPM]));
        let read: Vec<_> = feedback.quotas.iter().map(|q| (q.which.unit, q.remaining, q.full_in)).collect();
        assert_eq!(
            read,
            [
                (Unit::Requests, 0, Some(Duration::from_secs(41))),
                (Unit::InputTokens, 12_000, Some(Duration::from_secs(46))),
                (Unit::OutputTokens, 10_000, None),
            ]
        );
    }

    #[test]
    fn overload_has_a_status_of_its_own_and_some_disguises() {
        let body = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
        assert_eq!(verdict(Anthropic, 529, &[], body), Verdict::Overloaded { delay: None });
        let body = r#"{"type":"error","error":{"type":"api_error","message":"Overloaded"}}"#;
        assert_eq!(verdict(Anthropic, 500, &[], body), Verdict::Overloaded { delay: None });
        let body = r#"{"type":"error","error":{"type":"api_error","message":"Internal server error"}}"#;
        assert_eq!(verdict(Anthropic, 500, &[], body), Verdict::Other { status: 500 });
    }

    #[test]
    fn a_spending_cap_carries_no_delay_and_ends_it() {
        let body = r#"{"type":"error","error":{"type":"rate_limit_error","message":"You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC."}}"#;
        let until = Some("2026-12-01T00:00:00Z".parse().unwrap());
        assert_eq!(verdict(Anthropic, 429, &[], body), Verdict::Stop(Stop::SpendCap { until }));
        assert_eq!(verdict(Anthropic, 400, &[], body), Verdict::Stop(Stop::SpendCap { until }));
        let body = r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}"#;
        assert_eq!(verdict(Anthropic, 400, &[], body), Verdict::Stop(Stop::InsufficientQuota));
        // A bare 429 is not taken for the end.
        assert_eq!(verdict(Anthropic, 429, &[], RATE), Verdict::BackOff { limits: vec![INPUT_TPM] });
    }
}

mod gemini {
    use super::*;
    use Provider::Gemini;

    fn body(message: &str, details: &str) -> String {
        let message = serde_json::Value::from(message);
        format!(r#"{{"error":{{"code":429,"message":{message},"status":"RESOURCE_EXHAUSTED","details":[{details}]}}}}"#)
    }

    fn violation(metric: &str, id: &str, value: &str) -> String {
        format!(
            r#"{{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{{"quotaMetric":"generativelanguage.googleapis.com/{metric}","quotaId":"{id}","quotaDimensions":{{"location":"global","model":"gemini-2.5-flash"}},"quotaValue":"{value}"}}]}}"#
        )
    }

    const RETRY_36: &str = r#"{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"36s"}"#;

    #[test]
    fn the_messages_fraction_wins_over_the_rounded_detail() {
        let minute = violation(
            "generate_content_free_tier_requests",
            "GenerateRequestsPerMinutePerProjectPerModel-FreeTier",
            "10",
        );
        let body = body("You exceeded your current quota. \nPlease retry in 36.43s.", &format!("{minute},{RETRY_36}"));
        assert_eq!(verdict(Gemini, 429, &[], &body), wait(36_430, &[RPM]));
    }

    #[test]
    fn a_detail_without_its_fraction_gets_a_second_more() {
        let tokens = violation(
            "generate_content_free_tier_input_token_count",
            "GenerateContentInputTokensPerModelPerMinute-FreeTier",
            "250000",
        );
        let body = body("You exceeded your current quota.", &format!("{tokens},{RETRY_36}"));
        assert_eq!(verdict(Gemini, 429, &[], &body), wait(37_000, &[INPUT_TPM]));
        let zero = r#"{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"0s"}"#;
        assert_eq!(verdict(Gemini, 429, &[], &super::gemini::body("", zero)), wait(1_000, &[]));
        let exact = r#"{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"36.430s"}"#;
        assert_eq!(verdict(Gemini, 429, &[], &super::gemini::body("", exact)), wait(36_430, &[]));
    }

    #[test]
    fn a_daily_quota_parks_until_midnight_in_los_angeles_whatever_the_short_delay_says() {
        let day = violation(
            "generate_content_free_tier_requests",
            "GenerateRequestsPerDayPerProjectPerModel-FreeTier",
            "250",
        );
        let body = body("Please retry in 36.43s.", &format!("{day},{RETRY_36}"));
        let parked = |now: &str| {
            let now: Timestamp = now.parse().unwrap();
            match Gemini.read(429, &NONE, body.as_bytes(), now).verdict {
                Verdict::Park { until, limits } => (until.to_string(), limits),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(parked("2026-11-15T20:00:00Z"), ("2026-11-16T08:00:00Z".into(), vec![RPD]));
        assert_eq!(parked("2026-07-15T20:00:00Z"), ("2026-07-16T07:00:00Z".into(), vec![RPD]));
        // The days on which the clocks change are 23 and 25 hours long.
        assert_eq!(parked("2026-03-08T08:00:00Z").0, "2026-03-09T07:00:00Z");
        assert_eq!(parked("2026-11-01T07:00:00Z").0, "2026-11-02T08:00:00Z");
    }

    #[test]
    fn one_daily_violation_among_others_decides() {
        let details = r#"{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[
            {"quotaMetric":"generativelanguage.googleapis.com/generate_content_free_tier_input_token_count","quotaId":"GenerateContentInputTokensPerModelPerMinute-FreeTier"},
            {"quotaMetric":"generativelanguage.googleapis.com/generate_requests_per_model_per_day","quotaId":"GenerateRequestsPerDayPerProjectPerModel"}]}"#;
        let Verdict::Park { limits, .. } = verdict(Gemini, 429, &[], &body("", details)) else { panic!() };
        assert_eq!(limits, [RPD]);
        // The metric says it too.
        let details = r#"{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[
            {"quotaMetric":"generativelanguage.googleapis.com/generate_requests_per_model_per_day"}]}"#;
        assert!(matches!(verdict(Gemini, 429, &[], &body("", details)), Verdict::Park { .. }));
    }

    #[test]
    fn a_quota_of_zero_never_comes_back() {
        let message = "You exceeded your current quota, please check your plan and billing details.\n* Quota exceeded for metric: generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 0, model: gemini-2.5-pro\nPlease retry in 20.04466179s.";
        assert_eq!(verdict(Gemini, 429, &[], &body(message, RETRY_36)), Verdict::Stop(Stop::NoQuota));
        let zero = violation("x_requests", "GenerateRequestsPerDayPerProjectPerModel", "0");
        assert_eq!(verdict(Gemini, 429, &[], &body("", &zero)), Verdict::Stop(Stop::NoQuota));
    }

    #[test]
    fn details_may_be_missing_wrapped_or_in_a_list() {
        let bare = r#"{"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota).","status":"RESOURCE_EXHAUSTED"}}"#;
        let nothing = Verdict::BackOff { limits: vec![] };
        assert_eq!(verdict(Gemini, 429, &[], bare), nothing);
        assert_eq!(verdict(Gemini, 429, &[], &format!("[{bare}]")), nothing);
        let wrapped = body("Please retry in 2.5s.", "");
        let wrapped = serde_json::json!({"error": {"message": wrapped, "code": 429, "status": "Too Many Requests"}});
        assert_eq!(verdict(Gemini, 429, &[], &wrapped.to_string()), wait(2_500, &[]));
        assert_eq!(verdict(Gemini, 429, &[], ""), nothing);
    }

    #[test]
    fn an_overloaded_model_is_not_a_limit() {
        let body = r#"{"error":{"code":503,"message":"The model is overloaded. Please try again later.","status":"UNAVAILABLE"}}"#;
        assert_eq!(verdict(Gemini, 503, &[], body), Verdict::Overloaded { delay: None });
        assert_eq!(verdict(Gemini, 400, &[], "{}"), Verdict::Other { status: 400 });
    }
}

#[test]
fn header_maps_are_headers() {
    let mut headers = http::HeaderMap::new();
    headers.insert("Retry-After", http::HeaderValue::from_static("20"));
    headers.insert("x-broken", http::HeaderValue::from_bytes(b"\xff").unwrap());
    let verdict = Provider::Anthropic.read(429, &headers, b"", now()).verdict;
    assert_eq!(verdict, wait(20_000, &[]));
}

mod garbage {
    use super::*;

    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        fn below(&mut self, n: usize) -> usize {
            (self.next() % n as u64) as usize
        }

        fn one_of<'a>(&mut self, list: &[&'a str]) -> &'a str {
            list[self.below(list.len())]
        }
    }

    /// Pieces that the parsers look for, and pieces that trip parsers.
    const PIECES: &[&str] = &[
        "PerDay",
        "GenerateRequestsPerMinute",
        "Request too large",
        "Please try again in ",
        "Please retry in ",
        "retry after ",
        "please wait ",
        "Limit ",
        "Used ",
        "Requested ",
        "36.43s",
        "372ms",
        "6m0s",
        "1h2m3.5s",
        "-1",
        "0",
        "00",
        "1e308",
        "1e999",
        "NaN",
        "inf",
        "9999999999999999999999",
        "0.0000000001",
        ".",
        "..",
        "s",
        "ms",
        "µs",
        "m",
        "h",
        "d",
        " seconds",
        "(TPM)",
        "(RPD)",
        "requests per day",
        "insufficient_quota",
        "limit: 0,",
        "spending cap",
        "regain access on ",
        "2026-12-01",
        "9999-99-99",
        " at ",
        "24:61",
        "\u{0}",
        "\u{202e}",
        "é",
        "🦀",
        "\"",
        "\\",
        "{",
        "}",
        "[",
        "]",
        "\n",
        "Overloaded",
        "usage limits",
        "1794770714",
        "1794770714570",
        "2026-11-15T20:00:41Z",
        "Sun, 15 Nov 2026 20:00:30 GMT",
        "Fri, 31 Dec 9999 23:59:59 GMT",
    ];
    const NAMES: [&str; 16] = [
        "retry-after",
        "retry-after-ms",
        "llm_provider-retry-after",
        "date",
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
        "anthropic-ratelimit-input-tokens-limit",
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
    ];
    const STATUSES: [u16; 12] = [0, 200, 400, 402, 403, 404, 429, 429, 500, 503, 529, 65_535];
    const PROVIDERS: [Provider; 3] = [Provider::OpenAi, Provider::Anthropic, Provider::Gemini];

    fn text(random: &mut Random) -> String {
        (0..random.below(7)).map(|_| random.one_of(PIECES)).collect()
    }

    fn json(random: &mut Random) -> Vec<u8> {
        let mut value = || serde_json::Value::from(text(random));
        let quota = "type.googleapis.com/google.rpc.QuotaFailure";
        let retry = "type.googleapis.com/google.rpc.RetryInfo";
        let violation = serde_json::json!({"quotaId": value(), "quotaMetric": value(), "quotaValue": value()});
        let error = serde_json::json!({"error": {
            "message": value(), "type": value(), "code": value(), "status": value(),
            "details": [{"@type": quota, "violations": [violation]}, {"@type": retry, "retryDelay": value()}],
        }});
        let mut bytes = error.to_string().into_bytes();
        // Cut, or with a byte flipped, or as it is.
        match random.below(3) {
            0 => bytes.truncate(random.below(bytes.len())),
            1 => {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            _ => {}
        }
        bytes
    }

    fn check(feedback: &Feedback, now: Timestamp, seed: u64) {
        match &feedback.verdict {
            Verdict::Wait { delay, .. } | Verdict::Overloaded { delay: Some(delay) } => {
                assert!(!delay.is_zero() && *delay <= DELAY_MAX, "seed {seed}: {feedback:?}");
            }
            Verdict::Park { until, .. } => {
                // The server's clock may be a day off ours.
                let ahead = until.duration_since(now).as_secs_f64();
                let day = DELAY_MAX.as_secs_f64();
                assert!((-day..=2.0 * day).contains(&ahead), "seed {seed}: {feedback:?}");
            }
            _ => {}
        }
        for quota in &feedback.quotas {
            assert!(quota.capacity.is_none_or(|capacity| capacity > 0 && quota.remaining <= capacity), "seed {seed}");
            assert!(quota.full_in.is_none_or(|full| !full.is_zero() && full <= DELAY_MAX), "seed {seed}");
        }
    }

    #[test]
    fn no_answer_panics_or_leads_to_an_absurd_wait() {
        let rounds = if std::env::var_os("TIDEGATE_SOAK").is_some() { 400_000 } else { 10_000 };
        let mut seen = std::collections::HashSet::new();
        for seed in 0..rounds {
            let random = &mut Random(seed);
            let mut headers: Vec<(&str, String)> = Vec::new();
            for _ in 0..random.below(8) {
                headers.push((random.one_of(&NAMES), text(random)));
            }
            let body = match random.below(4) {
                0 => (0..random.below(200)).map(|_| random.next() as u8).collect(),
                1 => text(random).into_bytes(),
                _ => json(random),
            };
            let status = STATUSES[random.below(STATUSES.len())];
            for provider in PROVIDERS {
                let feedback = provider.read(status, &headers, &body, now());
                check(&feedback, now(), seed);
                seen.insert(std::mem::discriminant(&feedback.verdict));
            }
        }
        // The garbage is not so random that it never gets past the front door.
        assert_eq!(seen.len(), 8, "some verdicts were never reached");
    }

    #[test]
    fn any_time_will_do() {
        let day = r#"{"error":{"code":429,"details":[{"@type":"google.rpc.QuotaFailure","violations":[{"quotaId":"PerDay"}]}]}}"#;
        for now in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
            for provider in PROVIDERS {
                for value in ["20", "1e300", "Fri, 31 Dec 9999 23:59:59 GMT", "2026-11-15T20:00:41Z"] {
                    let headers = [
                        ("retry-after", value),
                        ("x-ratelimit-remaining-tokens", "5"),
                        ("x-ratelimit-reset-tokens", value),
                    ];
                    check(&provider.read(429, &headers, b"", now), now, 0);
                    provider.read(429, &headers, day.as_bytes(), now);
                }
            }
        }
    }
}
