//! Guessing a token becomes slow to answer: wrong ones are counted per peer, and for all peers together. A right one forgives
//! nothing: behind a proxy, others may be guessing at the same address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// This many wrong tokens are answered at once; each then costs its peer [`PAUSE`].
const FREE: u32 = 5;
const PAUSE: Duration = Duration::from_secs(12);

/// All peers together: a crowd of addresses does not guess faster than this.
const FREE_FOR_ALL: u32 = 60;
const PAUSE_FOR_ALL: Duration = Duration::from_secs(1);

/// Peers that are remembered; beyond, those that are forgiven soonest are forgotten.
const PEERS_MAX: usize = 1024;

/// Wrong tokens as a bucket that runs out: each adds a pause, and beyond the free ones the peer waits.
#[derive(Debug, Clone, Copy)]
struct Debt {
    /// When nothing is held against it any more.
    forgiven_at: Instant,
}

impl Debt {
    fn locked_for(self, now: Instant, free: u32, pause: Duration) -> Option<Duration> {
        let debt = self.forgiven_at.saturating_duration_since(now);
        debt.checked_sub(pause * (free - 1)).filter(|wait| !wait.is_zero())
    }

    fn add(&mut self, now: Instant, pause: Duration) {
        self.forgiven_at = self.forgiven_at.max(now) + pause;
    }
}

#[derive(Debug, Default)]
pub(super) struct Attempts {
    peers: HashMap<IpAddr, Debt>,
    all: Option<Debt>,
}

impl Attempts {
    /// How long this peer has to wait for its next attempt; `None` if it need not.
    pub(super) fn locked_for(&self, peer: IpAddr, now: Instant) -> Option<Duration> {
        let own = self.peers.get(&group(peer)).and_then(|debt| debt.locked_for(now, FREE, PAUSE));
        let all = self.all.and_then(|debt| debt.locked_for(now, FREE_FOR_ALL, PAUSE_FOR_ALL));
        own.max(all)
    }

    pub(super) fn failed(&mut self, peer: IpAddr, now: Instant) {
        self.peers.retain(|_, debt| debt.forgiven_at > now);
        if self.peers.len() >= PEERS_MAX
            && let Some(soonest) = self.peers.iter().min_by_key(|(_, debt)| debt.forgiven_at).map(|(peer, _)| *peer)
        {
            self.peers.remove(&soonest);
        }
        self.peers.entry(group(peer)).or_insert(Debt { forgiven_at: now }).add(now, PAUSE);
        self.all.get_or_insert(Debt { forgiven_at: now }).add(now, PAUSE_FOR_ALL);
    }
}

/// A host has a whole /64 of IPv6 addresses.
fn group(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guessing_becomes_slow_and_waiting_forgives() {
        let (mut attempts, start) = (Attempts::default(), Instant::now());
        let peer = IpAddr::from([192, 0, 2, 1]);
        for _ in 0..FREE {
            assert_eq!(attempts.locked_for(peer, start), None);
            attempts.failed(peer, start);
        }
        let wait = attempts.locked_for(peer, start).expect("locked");
        assert!(wait <= PAUSE, "{wait:?}");
        assert_eq!(attempts.locked_for(IpAddr::from([192, 0, 2, 2]), start), None, "another peer");
        assert_eq!(attempts.locked_for(peer, start + PAUSE), None, "one attempt after a pause");
        attempts.failed(peer, start + PAUSE);
        assert!(attempts.locked_for(peer, start + PAUSE).is_some());
        assert_eq!(attempts.locked_for(peer, start + PAUSE * (FREE + 2)), None);
    }

    #[test]
    fn many_addresses_do_not_guess_faster_than_one_a_second() {
        let (mut attempts, start) = (Attempts::default(), Instant::now());
        let peer = |i: u32| IpAddr::from((0xc000_0200 + i).to_be_bytes());
        let answered = (0..10_000).filter(|&i| {
            let answered = attempts.locked_for(peer(i), start).is_none();
            if answered {
                attempts.failed(peer(i), start);
            }
            answered
        });
        assert_eq!(answered.count(), FREE_FOR_ALL as usize);
    }

    #[test]
    fn addresses_of_one_ipv6_host_count_together_and_memory_is_bounded() {
        let (mut attempts, start) = (Attempts::default(), Instant::now());
        for i in 0..FREE as u16 {
            attempts.failed(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, i]), start);
        }
        assert!(attempts.locked_for(IpAddr::from([0x2001, 0xdb8, 0, 0, 9, 9, 9, 9]), start).is_some());
        for i in 0..5_000_u32 {
            attempts.failed(IpAddr::from(i.to_be_bytes()), start);
        }
        assert_eq!(attempts.peers.len(), PEERS_MAX);
    }
}
