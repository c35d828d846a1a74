use super::{Client, Frame, Meeting, Server};
use crate::error::Error;
use crate::transport::bootstrap::{Exchange, JobControl, MeetingPoint, PeEvent};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::mpsc::Receiver;
use std::time::Duration;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LONG: Duration = Duration::from_secs(60);

fn server(pes: u32) -> (Server, Receiver<(u32, PeEvent)>) {
    let server = Server::new(pes, HERE).unwrap();
    let events = server.events().unwrap();
    (server, events)
}

fn join(server: &Server, pe: u32) -> Client {
    Client::join(server.meeting(), pe).unwrap()
}

#[test]
fn exchanges_keep_the_order_of_the_pes() {
    let (server, _events) = server(5);
    std::thread::scope(|scope| {
        for pe in 0..5 {
            let server = &server;
            scope.spawn(move || {
                let client = join(server, pe);
                assert_eq!((client.me(), client.pes()), (pe, 5));
                for round in 0..20u32 {
                    // Each PE contributes a different number of bytes; PE 0 none.
                    let given = |pe: u32| vec![round as u8; (pe * 1000) as usize];
                    let expected: Vec<_> = (0..5).map(given).collect();
                    assert_eq!(client.gather(&given(pe)).unwrap(), expected);
                }
                client.report_finished();
            });
        }
    });
}

#[test]
fn the_launcher_learns_how_pes_end() {
    let (server, events) = server(3);
    let next = || events.recv_timeout(LONG).unwrap();
    let first = join(&server, 0);
    assert_eq!(next(), (0, PeEvent::Attached));
    let second = join(&server, 1);
    assert_eq!(next(), (1, PeEvent::Attached));
    first.report_finished();
    assert_eq!(next(), (0, PeEvent::Finished));
    drop(first);
    assert_eq!(next(), (0, PeEvent::Gone));
    second.report_lost(2);
    assert_eq!(next(), (1, PeEvent::Lost(2)));
    second.request_exit_all(7);
    assert_eq!(next(), (1, PeEvent::ExitAll(7)));
    server.end_all(7);
    assert_eq!(second.wait_for_end(), Some(7));
}

#[test]
fn a_lost_pe_ends_an_exchange() {
    let (server, events) = server(3);
    let (first, second) = (join(&server, 0), join(&server, 1));
    assert_eq!(first.lost(), None);
    drop(second);
    while events.recv_timeout(LONG).unwrap() != (1, PeEvent::Gone) {}
    assert!(matches!(first.gather(b"0"), Err(Error::LinkLost { peer: 1, .. })));
    assert_eq!(first.lost(), Some(1));
    // If a PE joins later, the server must also tell it which PE was lost.
    let third = join(&server, 2);
    assert!(matches!(third.gather(b"2"), Err(Error::LinkLost { peer: 1, .. })));
}

#[test]
fn the_end_of_the_launcher_ends_an_exchange() {
    let (server, _events) = server(2);
    let client = join(&server, 0);
    drop(server);
    assert!(matches!(client.gather(b""), Err(Error::LauncherLost)));
    assert_eq!(client.wait_for_end(), None);
}

#[test]
fn strangers_and_second_copies_are_refused() {
    let (server, events) = server(2);
    let meeting = server.meeting().clone();
    let _first = join(&server, 0);
    let refused = |meeting: &Meeting, pe| {
        assert!(matches!(Client::join(meeting, pe), Err(Error::Failed { .. })));
    };
    refused(&meeting, 0);
    refused(&meeting, 2);
    let mut token = meeting.token;
    token[3] ^= 1;
    refused(&Meeting { token, ..meeting.clone() }, 1);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xFF; 64], &Frame::Finished.encode()] {
        let mut stream = TcpStream::connect(meeting.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let _ = stream.write_all(garbage);
        // The server closes the connection without an answer.
        assert!(!matches!(stream.read(&mut [0; 1]), Ok(1)));
    }
    // The job still works.
    let second = join(&server, 1);
    assert_eq!(events.iter().take(2).collect::<Vec<_>>(), [(0, PeEvent::Attached), (1, PeEvent::Attached)]);
    drop(second);
}

#[test]
fn a_pe_that_breaks_the_rules_is_lost() {
    let (server, events) = server(1);
    let mut stream = TcpStream::connect(server.meeting().address).unwrap();
    let hello = Frame::Hello { token: server.meeting().token, pe: 0 };
    stream.write_all(&hello.encode()).unwrap();
    assert_eq!(Frame::read(&mut stream, 64).unwrap(), Frame::Welcome(1));
    stream.write_all(&Frame::Welcome(3).encode()).unwrap();
    while events.recv_timeout(LONG).unwrap() != (0, PeEvent::Gone) {}
}

#[test]
fn meeting_points_are_parsed() {
    let meeting = Meeting { address: "10.1.2.3:45".parse().unwrap(), token: [7; 16] };
    assert_eq!(meeting.to_string().parse::<Meeting>().unwrap(), meeting);
    for bad in ["", "10.1.2.3/00", "10.1.2.3:45/", "10.1.2.3:45/+7070707070707070707070707070707", "x"] {
        assert!(bad.parse::<Meeting>().is_err(), "{bad}");
    }
}

fn frames() -> impl Strategy<Value = Frame> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        (any::<[u8; 16]>(), any::<u32>()).prop_map(|(token, pe)| Frame::Hello { token, pe }),
        bytes().prop_map(Frame::Gather),
        Just(Frame::Finished),
        any::<i32>().prop_map(Frame::Exit),
        any::<u32>().prop_map(Frame::Lost),
        any::<u32>().prop_map(Frame::Welcome),
        proptest::collection::vec(bytes(), 0..6).prop_map(Frame::Gathered),
        any::<u32>().prop_map(Frame::Gone),
        any::<i32>().prop_map(Frame::End),
    ]
}

proptest! {
    #[test]
    fn frames_are_read_as_they_were_written(frame in frames()) {
        prop_assert_eq!(Frame::read(&mut &frame.encode()[..], 1000).unwrap(), frame);
    }

    #[test]
    fn any_bytes_are_a_frame_or_refused(kind: u8, payload in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Some(frame) = Frame::decode(kind, &payload) {
            prop_assert_eq!(&frame.encode()[5..], &payload[..]);
        }
    }

    #[test]
    fn any_text_is_a_meeting_point_or_refused(text in ".{0,60}") {
        if let Ok(meeting) = text.parse::<Meeting>() {
            prop_assert_eq!(meeting.to_string().parse::<Meeting>().unwrap(), meeting);
        }
    }
}
