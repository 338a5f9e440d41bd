//! One suite for every selector: what the loop promises about descriptors, it promises with each of them. A test is a
//! function of the selector's kind; the list below makes one test a selector of it.
//!
//! `TIDEGATE_SOAK=1` runs the long versions.

mod callbacks;
mod closing;
mod echo;
mod fairness;
mod growth;
mod kinds;
mod leaving;
mod limits;
mod support;

use tidegate_loop::SelectorKind;

macro_rules! suite {
    ($($module:ident { $($test:ident)* })*) => {
        suite!(select Select, $($($module $test)*)*);
        suite!(epoll_level EpollLevel, $($($module $test)*)*);
        suite!(epoll Epoll, $($($module $test)*)*);
        suite!(io_uring IoUring, $($($module $test)*)*);
    };
    ($name:ident $kind:ident, $($module:ident $test:ident)*) => {
        mod $name {
            $(
                #[test]
                fn $test() {
                    super::support::run_on(super::SelectorKind::$kind, super::$module::$test);
                }
            )*
        }
    };
}

suite! {
    echo {
        a_thousand_connections_echo_64_bytes_in_order
        a_thousand_connections_echo_4_kib_in_order
        a_slow_reader_holds_its_writer_up_and_loses_nothing
        vectored_reads_and_writes_keep_their_order
        urgent_data_does_not_stop_a_reader
        a_large_body_reaches_a_peer_that_says_nothing
        a_receive_mark_keeps_drops_back_and_lets_a_flood_and_the_end_through
    }
    closing {
        after_half_a_close_the_other_half_goes_on
        the_end_is_seen_with_the_last_bytes_and_without_any
        a_reset_fails_the_reader_and_the_writer
        ten_thousand_connections_come_and_go
        closing_fails_whoever_waits
        a_cancelled_wait_leaves_the_next_one_its_data
        a_reused_descriptor_hears_nothing_of_its_last_life
        random_openings_and_closings_keep_streams_apart
        two_tasks_may_wait_for_one_stream
    }
    fairness {
        a_stream_that_is_always_ready_starves_nobody
        an_idle_loop_does_not_wake_up
        what_nobody_waits_for_does_not_wake_the_loop
        the_loop_is_rung_for_from_other_threads
    }
    leaving {
        what_was_written_in_the_last_tick_arrives_though_the_loop_stops
        a_stream_dropped_in_the_last_tick_ends
        a_stream_dropped_while_the_loop_stands_still_ends
        a_loop_closes_with_streams_in_every_state
        a_stream_that_outlives_its_loop_fails_and_does_not_wait
        a_port_is_free_when_its_listener_is_gone
    }
    growth {
        connections_leave_neither_descriptors_nor_memory_behind
    }
    kinds {
        datagrams_arrive_whole_from_whom_they_were_sent
        a_datagram_to_nobody_is_told_and_the_socket_goes_on
        unix_sockets_carry_streams_and_datagrams
        a_descriptor_sent_along_does_not_stop_a_reader
        a_pipe_carries_everything_to_its_end
    }
    callbacks {
        a_reader_removed_earlier_in_the_tick_does_not_run
        a_second_reader_replaces_the_first
        a_callback_runs_as_long_as_its_descriptor_is_ready
        reader_and_writer_of_one_descriptor_are_apart
        a_descriptor_of_a_socket_is_refused
        a_descriptor_closed_behind_the_loops_back_does_not_stop_it
    }
}
