//! What a strict server saw of its clients.

use tidegate_rehearsal::Stats;

/// Returns `Err` if more came than the strict limits allow: that may be the machine's fault, if requests were on their way for
/// longer than the gate's margin. Unless one was on its way for a whole window, no window sees more than two windows' worth.
/// A client without a gate sends more than that.
pub(crate) fn strict(stats: &Stats) -> Result<(), String> {
    for limit in &stats.limits {
        assert!(limit.worst_offered <= 2 * limit.amount, "{limit:?}");
    }
    let kept = stats.limits.iter().all(|limit| limit.worst_offered <= limit.amount);
    if stats.refused.total() == 0 && kept { Ok(()) } else { Err(format!("{stats}; {:?}", stats.limits)) }
}
