//! Ports of the library's user, without `unsafe`: a [`FrameSource`] gives frames to a run, and a [`FrameSink`] takes frames from
//! it. Each frame is copied once. A port that must not copy implements [`Port`] with [`Rx`] and [`Tx`].

use crate::spec::{OwnPort, PortSpec, Properties, Role, Source};
use inlane_core::packet::PacketMeta;
use inlane_core::port::Counters;
use inlane_core::{Error, Packet, Pool, Port, PortInfo, Result, Rx, Tx};
use std::sync::{Arc, Mutex};

/// What a [`FrameSource`] has for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextFrame {
    /// A frame of this many bytes, which the source has written to the start of the buffer.
    Frame(usize),
    /// No frame now. The run asks again soon.
    None,
    /// No further frame will ever come.
    End,
}

/// A source of frames. One thread uses it.
pub trait FrameSource: Send {
    /// Writes the next frame, without FCS, to the start of `buffer`. The buffer has the run's room for a packet, 2 KiB by
    /// default. Returns at once, because a run that waits here cannot be stopped.
    ///
    /// # Errors
    /// Ends the run. The result then covers the packets before the error.
    fn next(&mut self, buffer: &mut [u8]) -> Result<NextFrame>;
}

/// A sink for frames. One thread uses it.
pub trait FrameSink: Send {
    /// Takes a frame. Returns false if it cannot take the frame now: the run then offers the same frame again later. `meta` has
    /// the frame's time if it comes from a capture.
    ///
    /// # Errors
    /// Ends the run.
    fn take(&mut self, frame: &[u8], meta: &PacketMeta) -> Result<bool>;

    /// Called when no further frame will come.
    ///
    /// # Errors
    /// Fails the run, as when the last frames cannot be stored.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

impl PortSpec {
    /// Creates the specification of a port that receives the frames of `source`. A run can receive from it once.
    pub fn from_source(name: impl Into<String>, source: impl FrameSource + 'static) -> Self {
        own(name.into(), Role::Receive, Source::Outside, (Some(Box::new(source)), None))
    }

    /// Creates the specification of a port that sends frames to `sink`. A run can send to it once.
    pub fn to_sink(name: impl Into<String>, sink: impl FrameSink + 'static) -> Self {
        own(name.into(), Role::Send, Source::None, (None, Some(Box::new(sink))))
    }
}

/// The ends of a port. Each belongs to the first run that opens the port.
type Ends = (Option<Box<dyn FrameSource>>, Option<Box<dyn FrameSink>>);

fn own(name: String, role: Role, source: Source, ends: Ends) -> PortSpec {
    let properties = Properties { role, source, ..Properties::PLAIN };
    let ends = Mutex::new(Some(ends));
    let opened = name.clone();
    let open = move |_: &_| {
        let ends = ends.lock().expect("nothing panics while it holds the ends").take();
        let Some((source, sink)) = ends else {
            let why = "a run has already used it; create the port again for each run";
            return Err(Error::port_usage(&opened, why));
        };
        let info = PortInfo {
            name: opened.clone(),
            path: "a port of the program's own (one copy of each frame)".into(),
            touches_payload: true,
            max_queues: 1,
            spreads_flows: false,
            link_bits_per_second: None,
            twin: false,
        };
        Ok(Box::new(FramePort { info, source, sink, pool: None }) as Box<dyn Port>)
    };
    PortSpec::Own(OwnPort { name, properties, open: Arc::new(open) })
}

/// A port over a source or a sink.
struct FramePort {
    info: PortInfo,
    source: Option<Box<dyn FrameSource>>,
    sink: Option<Box<dyn FrameSink>>,
    pool: Option<Arc<dyn Pool>>,
}

impl Port for FramePort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], _tx_queues: u16) -> Result<()> {
        self.pool = pools.first().cloned();
        Ok(())
    }

    fn take_rx(&mut self, queue: u16) -> Result<Box<dyn Rx>> {
        match (self.source.take(), self.pool.clone()) {
            (Some(source), Some(pool)) => Ok(Box::new(SourceRx {
                name: self.info.name.clone(),
                source,
                pool,
                spare: None,
                failure: None,
                ended: false,
                counters: Counters::default(),
            })),
            _ => Err(Error::port_failed(
                &self.info.name,
                format!("receive queue {queue} does not exist or is taken"),
            )),
        }
    }

    fn take_tx(&mut self, queue: u16, pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        match self.sink.take() {
            Some(sink) => Ok(Box::new(SinkTx {
                sink,
                pool,
                joined: Vec::new(),
                finished: false,
                counters: Counters::default(),
            })),
            None => Err(Error::port_failed(
                &self.info.name,
                format!("send queue {queue} does not exist or is taken"),
            )),
        }
    }
}

/// The receive queue over a source.
struct SourceRx {
    name: String,
    source: Box<dyn FrameSource>,
    pool: Arc<dyn Pool>,
    /// A buffer that was allocated although the source had no frame for it. The next frame uses it.
    spare: Option<Packet>,
    /// An error that followed received packets. The next call returns it.
    failure: Option<Error>,
    ended: bool,
    counters: Counters,
}

impl SourceRx {
    /// Receives one packet. Returns `None` if the source has no frame, or the pool no buffer.
    fn receive_one(&mut self) -> Result<Option<Packet>> {
        let mut packet = [Packet::EMPTY];
        let Some(mut packet) =
            self.spare.take().or_else(|| (self.pool.allocate(&mut packet) == 1).then_some(packet[0]))
        else {
            return Ok(None);
        };
        packet.length = self.pool.room() as u32;
        // SAFETY: this queue holds the packet, whose buffer has the pool's room. The port accesses payloads, so the run has
        // given it a pool in memory of the CPU.
        let next = self.source.next(unsafe { packet.bytes_mut() });
        let room = self.pool.room();
        if let Ok(NextFrame::Frame(length)) = next
            && length <= room
        {
            packet.length = length as u32;
            return Ok(Some(packet));
        }
        self.spare = Some(packet);
        match next? {
            NextFrame::Frame(length) => {
                let why = format!("its source claims a frame of {length} bytes in a buffer of {room}");
                return Err(Error::port_failed(&self.name, why));
            }
            NextFrame::None => {}
            NextFrame::End => self.ended = true,
        }
        Ok(None)
    }
}

// SAFETY: each packet is newly allocated from the queue's pool, and its length was checked.
unsafe impl Rx for SourceRx {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let mut count = 0;
        while count < packets.len() && !self.ended {
            match self.receive_one() {
                Ok(Some(packet)) => packets[count] = packet,
                Ok(None) => break,
                Err(error) if count == 0 => return Err(error),
                Err(error) => {
                    self.failure = Some(error);
                    break;
                }
            }
            self.counters.packets += 1;
            self.counters.bytes += u64::from(packets[count].length);
            count += 1;
        }
        Ok(count)
    }

    fn exhausted(&self) -> bool {
        self.ended
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for SourceRx {
    fn drop(&mut self) {
        if let Some(packet) = self.spare.take() {
            // SAFETY: this queue holds the packet, which is from this pool.
            unsafe { self.pool.free(&[packet]) };
        }
    }
}

/// The transmit queue over a sink.
struct SinkTx {
    sink: Box<dyn FrameSink>,
    pool: Arc<dyn Pool>,
    /// The bytes of a packet of several segments.
    joined: Vec<u8>,
    finished: bool,
    counters: Counters,
}

/// Returns the bytes of a packet. If it has several segments, joins them in `joined`.
///
/// # Safety
/// The caller holds the packet, it is from `pool`, and nobody writes its bytes.
unsafe fn frame<'a>(pool: &dyn Pool, packet: &'a Packet, joined: &'a mut Vec<u8>) -> &'a [u8] {
    // SAFETY: the caller's promises.
    if unsafe { pool.length(packet) } == packet.length as usize {
        // SAFETY: as above.
        return unsafe { packet.bytes() };
    }
    joined.clear();
    // SAFETY: as above.
    unsafe { pool.for_each_part(packet, &mut |part| joined.extend_from_slice(part)) };
    joined
}

// SAFETY: `send` frees the packets whose number it returns. If the sink fails for the first packet, it keeps and frees none.
unsafe impl Tx for SinkTx {
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        for (index, packet) in packets.iter().enumerate() {
            // SAFETY: the caller holds the packet, which is from this pool, and nobody writes it.
            let frame = unsafe { frame(&*self.pool, packet, &mut self.joined) };
            let length = frame.len();
            // SAFETY: as above.
            let meta = unsafe { self.pool.meta(packet) };
            match self.sink.take(frame, &meta) {
                Ok(true) => {
                    self.counters.packets += 1;
                    self.counters.bytes += length as u64;
                }
                Err(error) if index == 0 => return Err(error),
                // The run sends the other packets again, so a lasting error comes back as the error of the first one.
                Ok(false) | Err(_) => {
                    // SAFETY: the caller gave these packets away, because this call returns their number.
                    unsafe { self.pool.free(&packets[..index]) };
                    return Ok(index);
                }
            }
        }
        // SAFETY: as above.
        unsafe { self.pool.free(packets) };
        Ok(packets.len())
    }

    fn finish(&mut self, _keep_waiting: &mut dyn FnMut() -> bool) -> Result<()> {
        match std::mem::replace(&mut self.finished, true) {
            true => Ok(()),
            false => self.sink.finish(),
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::HeapPool;
    use inlane_core::clock::Clock;

    /// Gives frames of the lengths in the list. 0 stands for no frame now, and 9999 for an error.
    struct Lengths(Vec<usize>);

    impl FrameSource for Lengths {
        fn next(&mut self, buffer: &mut [u8]) -> Result<NextFrame> {
            Ok(match self.0.pop() {
                None => NextFrame::End,
                Some(0) => NextFrame::None,
                Some(9999) => return Err(Error::port_failed("lengths", "broken")),
                Some(length) => {
                    let end = length.min(buffer.len());
                    buffer[..end].fill(length as u8);
                    NextFrame::Frame(length)
                }
            })
        }
    }

    /// Keeps frames. Is busy at each second call.
    #[derive(Default)]
    struct Kept {
        frames: Arc<Mutex<Vec<Vec<u8>>>>,
        busy: bool,
    }

    impl FrameSink for Kept {
        fn take(&mut self, frame: &[u8], _: &PacketMeta) -> Result<bool> {
            self.busy = !self.busy;
            if !self.busy {
                self.frames.lock().unwrap().push(frame.to_vec());
            }
            Ok(!self.busy)
        }
    }

    fn open(spec: &PortSpec, pool: &Arc<dyn Pool>) -> Result<Box<dyn Port>> {
        let PortSpec::Own(own) = spec else { panic!("{spec:?} is no own port") };
        let mut port = (own.open)(&Clock::new())?;
        port.configure(std::slice::from_ref(pool), 1)?;
        Ok(port)
    }

    fn pool() -> Arc<dyn Pool> {
        Arc::new(HeapPool::new(8, 128).unwrap())
    }

    #[test]
    fn frames_of_a_source_arrive_until_its_end() {
        let pool = pool();
        let mut port = open(&PortSpec::from_source("lengths", Lengths(vec![9, 0, 8, 7])), &pool).unwrap();
        let mut rx = port.take_rx(0).unwrap();
        assert!(port.take_rx(0).is_err() && port.take_tx(0, pool.clone()).is_err());
        let mut packets = [Packet::EMPTY; 4];
        assert_eq!((rx.receive(&mut packets).unwrap(), rx.exhausted()), (2, false));
        // SAFETY: this test holds the packets.
        assert_eq!(unsafe { (packets[0].bytes(), packets[1].bytes()) }, (&[7; 7][..], &[8; 8][..]));
        assert_eq!((rx.receive(&mut packets[2..]).unwrap(), rx.exhausted()), (1, true));
        assert_eq!((rx.counters().packets, rx.counters().bytes), (3, 24));
        drop(rx);
        assert_eq!(pool.outstanding(), 3, "the packets of this test");
    }

    #[test]
    fn errors_follow_the_frames_before_them() {
        let pool = pool();
        for (lengths, expected) in
            [(vec![9999, 5], "broken"), (vec![129, 5], "a frame of 129 bytes in a buffer of 128")]
        {
            let mut port = open(&PortSpec::from_source("lengths", Lengths(lengths)), &pool).unwrap();
            let mut rx = port.take_rx(0).unwrap();
            let mut packets = [Packet::EMPTY; 4];
            assert_eq!(rx.receive(&mut packets).unwrap(), 1);
            let error = rx.receive(&mut packets[1..]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_busy_sink_is_offered_the_same_frame_again() {
        let pool = pool();
        let frames = Arc::default();
        let mut port =
            open(&PortSpec::to_sink("kept", Kept { frames: Arc::clone(&frames), busy: false }), &pool)
                .unwrap();
        let mut tx = port.take_tx(0, pool.clone()).unwrap();
        let mut packets = [Packet::EMPTY; 3];
        assert_eq!(pool.allocate(&mut packets), 3);
        for (index, packet) in packets.iter_mut().enumerate() {
            packet.length = 1 + index as u32;
        }
        let mut sent = 0;
        while sent < 3 {
            // SAFETY: the packets that were not sent are this test's.
            sent += unsafe { tx.send(&packets[sent..]) }.unwrap();
        }
        let lengths: Vec<_> = frames.lock().unwrap().iter().map(Vec::len).collect();
        assert_eq!((lengths, tx.counters().bytes, pool.outstanding()), (vec![1, 2, 3], 6, 0));
    }

    #[test]
    fn a_second_run_needs_a_new_port() {
        let pool = pool();
        let spec = PortSpec::from_source("lengths", Lengths(Vec::new()));
        assert!(open(&spec, &pool).is_ok());
        let error = open(&spec, &pool).err().expect("the source was taken").to_string();
        assert!(error.contains("port lengths: a run has already used it"), "{error}");
    }
}
