//! Completion queues: each link group takes the least-used one.
//!
//! Tony Lu, "net/smc: Spread workload over multiple cores" (RFC, January 2022): queues on completion vectors of their own, so that the work of
//! several groups is spread over several CPUs.

/// How many groups use each queue.
#[derive(Debug)]
pub struct Queues(Vec<u32>);

impl Queues {
    /// So many queues, at least one.
    pub fn new(count: usize) -> Self {
        Self(vec![0; count.max(1)])
    }

    /// The least-used one, for one more group: the first of them.
    pub fn take(&mut self) -> usize {
        let (at, users) =
            self.0.iter_mut().enumerate().min_by_key(|(_, users)| **users).expect("at least one");
        *users += 1;
        at
    }

    /// A group has ended.
    ///
    /// # Panics
    /// It had none.
    pub fn give_back(&mut self, at: usize) {
        self.0[at] = self.0[at].checked_sub(1).expect("a group that had it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_spread_over_the_queues() {
        let mut queues = Queues::new(3);
        assert_eq!([(); 7].map(|()| queues.take()), [0, 1, 2, 0, 1, 2, 0]);
        queues.give_back(1);
        queues.give_back(1);
        assert_eq!([(); 4].map(|()| queues.take()), [1, 1, 1, 2]);
        assert_eq!(Queues::new(0).take(), 0);
    }
}
