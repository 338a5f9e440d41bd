//! Single faults, each of which the drivers once had.

use super::*;

/// A world without dice: one connection, and what the test says.
fn calm(prefetch: usize) -> World {
    let mut world = World::new(0);
    (world.prefetch, world.quorum, world.has_twins, world.is_calm) = (prefetch, false, false, true);
    world.deliveries = Deliveries::new(1, prefetch);
    world.reconnect();
    world
}

fn settlement(tag: Tag, verdict: Verdict) -> Settlement {
    Settlement { tag, verdict, result: None }
}

fn retry() -> Verdict {
    Verdict::Retry { at: Timestamp::UNIX_EPOCH }
}

impl World {
    fn publish_one(&mut self, is_unique: bool) {
        self.publish();
        self.broker.ready.back_mut().unwrap().is_unique = is_unique;
    }

    /// Delivers and hands out one task.
    fn run_one(&mut self) -> Tag {
        self.deliver();
        self.act();
        self.hand_out();
        *self.running.last().expect("a task is handed out")
    }

    fn lose(&mut self) {
        self.broker.cut(&mut Rng::with_seed(0));
        self.deliveries.lost();
        self.act();
    }

    /// Drives until there is nothing more to do.
    fn drive_all(&mut self) {
        while !self.drivers.is_empty() {
            self.drive();
            self.act();
        }
    }

    fn begin(&mut self, tag: Tag, verdict: Verdict) {
        assert!(matches!(self.deliveries.settle(&settlement(tag, verdict), &self.known), Reply::Begun));
        self.act();
    }
}

#[test]
fn an_ack_that_cannot_be_sent_is_not_asked_for_again() {
    let mut world = calm(1);
    world.publish_one(false);
    let tag = world.run_one();
    world.begin(tag, retry());
    for _ in 0..4 {
        world.drive();
    }
    // Both copies are confirmed; the connection ends, and the machine does not know.
    world.broker.cut(&mut Rng::with_seed(0));
    let Todo::Send(..) = world.deliveries.poll(tag, world.now()) else { panic!("the ack is next") };
    world.deliveries.sent(tag, false);
    assert!(
        matches!(world.deliveries.poll(tag, world.now()), Todo::Stop),
        "a driver that asks for ever hangs the loop"
    );
    assert_eq!(world.deliveries.answer(tag), Settled::Lost);
}

#[test]
fn plans_without_a_delivery_take_up_no_room() {
    let mut world = calm(1);
    world.publish_one(false);
    let tag = world.run_one();
    world.begin(tag, retry());
    world.drive();
    world.drive();
    world.lose();
    world.drive_all();
    assert_eq!(world.deliveries.settlements.kept(), 1);
    // Another worker has the task.
    world.broker.ready.clear();
    world.reconnect();
    world.publish_one(false);
    world.run_one();
}

#[test]
fn a_redelivery_of_a_task_whose_ack_was_lost_is_acknowledged_while_its_key_is_freed() {
    let mut world = calm(1);
    world.publish_one(true);
    let tag = world.run_one();
    world.begin(tag, Verdict::Ack);
    let release = loop {
        match world.deliveries.poll(tag, world.now()) {
            Todo::Perform(step @ Step::Release(_)) => break step,
            Todo::Perform(step) => {
                let outcome = world.perform(tag, &step);
                world.deliveries.handle(tag, step, outcome);
            }
            Todo::Send(amqp, how) => {
                world.check_ack(tag, amqp);
                assert!(world.send(amqp, how));
                world.sent.insert(tag);
                world.deliveries.sent(tag, true);
            }
            Todo::Stop => panic!("the key is to be freed"),
        }
    };
    world.broker.acks.clear();
    world.lose();
    world.reconnect();
    world.deliver();
    world.act();
    world.drivers.remove(&tag);
    world.drive_all();
    assert_eq!(world.broker.acks.len(), 1, "the second delivery is acknowledged, and does not run");
    world.deliveries.handle(tag, release, Outcome::Done);
    assert!(matches!(world.deliveries.poll(tag, world.now()), Todo::Stop));
    assert_eq!(world.deliveries.answer(tag), Settled::Done);
}

#[test]
fn a_redelivery_that_was_judged_while_the_connection_was_lost_is_not_handed_out() {
    let mut world = calm(1);
    world.publish_one(false);
    world.broker.ready[0].redelivered = true;
    world.deliver();
    world.act();
    let tag = world.judging.pop().expect("it is judged");
    world.lose();
    world.deliveries.judged(tag, &world.known);
    world.reconnect();
    assert!(world.deliveries.hand_out(&world.known, world.now()).is_empty(), "its connection is gone");
}

#[test]
fn a_close_waits_for_deliveries_that_are_judged() {
    let mut world = calm(1);
    world.publish_one(false);
    world.broker.ready[0].redelivered = true;
    world.deliver();
    world.act();
    world.deliveries.stop();
    world.give_back(true);
    assert!(!world.deliveries.is_settled());
    world.judge();
    world.act();
    world.drive_all();
    assert!(world.deliveries.is_settled());
}

#[test]
fn a_recount_runs_only_if_its_copy_is_stored_nowhere() {
    for (fate, runs) in [
        (Fate::Refused { reason: String::new() }, true),
        (Fate::Returned { reason: String::new() }, true),
        (Fate::Unknown { reason: String::new() }, false),
        (Fate::Stored, false),
    ] {
        let mut world = calm(1);
        world.publish_one(false);
        world.broker.ready[0].redelivered = true;
        world.deliver();
        world.act();
        world.judge();
        let key = world.deliveries.settlements.tags().next().expect("it is counted");
        let Todo::Perform(step @ Step::Recount(_)) = world.deliveries.poll(key, world.now()) else { panic!() };
        world.deliveries.handle(key, step, Outcome::Fates(vec![fate.clone()]));
        let handed = world.deliveries.hand_out(&world.known, world.now());
        assert_eq!(!handed.is_empty(), runs, "{fate:?}");
        if let [Incoming::Delivery(delivery)] = &handed[..] {
            assert_eq!(delivery.crashes, 1);
        }
    }
}

#[test]
fn a_requeued_task_runs_again_though_its_settlement_is_not_over() {
    let mut world = calm(1);
    world.publish_one(false);
    let tag = world.run_one();
    world.begin(tag, Verdict::Return);
    while !world.sent.contains(&tag) {
        world.drive();
    }
    // Its driver has not asked since the requeue was sent.
    world.running.clear();
    world.lose();
    world.deliveries.excuse(true, 1, world.wall());
    world.reconnect();
    world.deliver();
    world.drive_all();
    assert!(world.broker.acks.is_empty(), "a task that did not run is acknowledged");
    world.hand_out();
    assert_eq!(world.running.len(), 1);
}

#[test]
fn a_recount_that_is_refused_after_its_connection_was_lost_does_not_run() {
    let mut world = calm(1);
    world.publish_one(false);
    world.broker.ready[0].redelivered = true;
    world.deliver();
    world.act();
    world.judge();
    let key = world.deliveries.settlements.tags().next().expect("it is counted");
    let Todo::Perform(step) = world.deliveries.poll(key, world.now()) else { panic!("the copy is first") };
    world.lose();
    let refused = Outcome::Fates(vec![Fate::Refused { reason: String::new() }]);
    assert_eq!(world.deliveries.handle(key, step, refused), After::Stop);
    world.reconnect();
    assert!(world.deliveries.hand_out(&world.known, world.now()).is_empty(), "its connection is gone");
}

#[test]
fn a_large_message_that_comes_again_after_a_cut_is_moved_to_the_dead_letters_once() {
    let mut world = calm(1);
    world.publish_one(false);
    let mut keys = Vec::new();
    for redelivered in [false, true] {
        let mut message = world.broker.ready.pop_front().expect("it waits");
        message.delivered += 1;
        let (number, attempt) = (world.broker.next, message.attempt.clone());
        world.broker.next += 1;
        world.broker.unacked.insert(number, message);
        let mut envelope = Envelope::new("mail", Vec::new());
        envelope.id = attempt.id;
        let (tag, published) = (world.deliveries.tag(number), Timestamp::UNIX_EPOCH);
        let stored = Stored { envelope: Arc::new(envelope), retries: 0, crashes: 0, published, dead: None };
        let plan = Plan::new([Step::Copy(Box::new((stored.clone(), Place::Dead))), Step::Ack]);
        let amqp = tidegate_amqp::Tag { epoch: tag.epoch, number };
        let held = Held { at: 0, tag, amqp, stored, counted: 0, delivered: 0, due: false, handed_out: None };
        keys.push(world.deliveries.quarantine(held, redelivered, plan, world.now()));
        world.act();
        if !redelivered {
            // The copy is confirmed, and the connection is lost before the ack.
            world.drive();
            world.drive();
            world.lose();
            world.drive_all();
            world.reconnect();
        }
    }
    world.drive_all();
    assert_eq!(keys[0], keys[1], "the second delivery joins the first plan");
    assert_eq!((world.broker.dead.len(), world.broker.acks.len()), (1, 1));
}
