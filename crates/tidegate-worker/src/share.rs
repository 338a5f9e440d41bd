//! How a claim is shared out among the queues of one consumer.

/// How many to take of each queue, given how many wait there: as equal as can be, nothing left unused while something waits.
/// Which queues get the odd ones changes with `turn`, so that over several claims none is behind.
///
/// Called with what waits *at most*; a queue that turns out shorter is no harm.
pub(crate) fn share(waiting: &[usize], room: usize, turn: usize) -> Vec<usize> {
    let mut taken = vec![0; waiting.len()];
    let mut left = room;
    loop {
        let hungry: Vec<usize> =
            (0..waiting.len()).map(|at| (at + turn) % waiting.len()).filter(|&at| taken[at] < waiting[at]).collect();
        if left == 0 || hungry.is_empty() {
            return taken;
        }
        let each = (left / hungry.len()).max(1);
        for at in hungry {
            let more = each.min(waiting[at] - taken[at]).min(left);
            taken[at] += more;
            left -= more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn every_queue_gets_its_part_and_nothing_is_left_unused() {
        assert_eq!(share(&[100, 100], 10, 0), [5, 5]);
        assert_eq!(share(&[1, 100], 10, 0), [1, 9]);
        assert_eq!(share(&[0, 3, 100], 50, 2), [0, 3, 47]);
        assert_eq!(share(&[2, 2], 10, 0), [2, 2]);
        assert_eq!(share(&[], 10, 0), Vec::<usize>::new());
    }

    #[test]
    fn the_odd_one_goes_round() {
        assert_eq!(share(&[9, 9], 1, 0), [1, 0]);
        assert_eq!(share(&[9, 9], 1, 1), [0, 1]);
    }
}
