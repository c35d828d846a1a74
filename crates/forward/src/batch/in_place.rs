//! Receives packets without copying them. The program gets the places of the packets in the memory of the run's pool, and holds their
//! buffers until it drops the batch.

use super::receiver::{ReceiveSettings, ports};
use super::{Run, Shared};
use crate::config::Config;
use crate::control::Control;
use crate::error::Result;
use crate::experiment::Measurement;
use inlane_core::port::Counters;
use inlane_core::{Packet, Pool, Port, PortInfo, Region, Rx, Tx};
use inlane_ports::spec::{OwnPort, PortSpec, Properties, Role};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The packets of a [`PacketsInPlace`].
type Places = Arc<Vec<Place>>;

/// Where a packet lies: its offset in the memory of the pool, and its length, both in bytes. Lists of packets go from one core to another, which
/// costs time for each cache line, so the two numbers share 8 bytes.
#[derive(Clone, Copy)]
struct Place(u64);

impl Place {
    /// The number of bits of a length. The others are those of the offset.
    const LENGTH_BITS: u32 = 20;
    const MOST_LENGTH: u64 = 1 << Self::LENGTH_BITS;
    const MOST_OFFSET: u64 = 1 << (u64::BITS - Self::LENGTH_BITS);

    /// Returns the place of a packet in memory that begins at `start`. [`Place::fit`] has accepted the pool.
    #[inline]
    fn new(packet: &Packet, start: u64) -> Self {
        Self(((packet.address - start) << Self::LENGTH_BITS) | u64::from(packet.length))
    }

    #[inline]
    fn offset(self) -> u64 {
        self.0 >> Self::LENGTH_BITS
    }

    #[inline]
    fn length(self) -> u32 {
        (self.0 % Self::MOST_LENGTH) as u32
    }

    /// Returns true if all packets of the pool have places, by which the pool can free them.
    fn fit(pool: &dyn Pool) -> bool {
        let fits =
            (pool.room() as u64) < Self::MOST_LENGTH && (pool.region().len() as u64) < Self::MOST_OFFSET;
        fits && pool.by_offset().is_some()
    }

    /// Frees the packets at these places.
    ///
    /// # Safety
    /// As for [`Pool::free`]. The places are those of packets of `pool`, and `Place::fit` has accepted it.
    unsafe fn free(places: &[Self], pool: &dyn Pool) {
        let pool = pool.by_offset().expect("`Place::fit` has accepted the pool");
        let mut offsets = [0; FREED_TOGETHER];
        for places in places.chunks(FREED_TOGETHER) {
            for (offset, place) in offsets.iter_mut().zip(places) {
                *offset = place.offset();
            }
            // SAFETY: as the caller promises.
            unsafe { pool.free_at(&offsets[..places.len()]) };
        }
    }
}

/// The most complete lists of packets that wait for the program. With two, the run fills the second one while the program wakes up for the first.
const MOST_LISTS: usize = 2;
/// The most emptied lists that are kept for further packets.
const MOST_SPARE: usize = 8;
/// The number of packets that are freed together. The pool is locked meanwhile, and the run may need it.
const FREED_TOGETHER: usize = 1024;

/// Receives the packets of a port in place, after a packet function if there is one. With a pool in the memory of a GPU
/// ([`Memory::Pool`](crate::gpu::Memory::Pool)), the packets stay there.
///
/// The pool has buffers for four batches, unless the configuration says how many. A program that keeps more receives nothing until it drops
/// some.
pub struct InPlaceReceiver {
    run: Run<Waiting>,
    settings: ReceiveSettings,
    /// When the program began to wait for the next packets. `None` if it does not wait.
    asked: Option<Instant>,
    wanted: Arc<AtomicBool>,
}

/// What [`InPlaceReceiver::next_within`] returns.
pub enum NextPackets {
    /// The next packets.
    Packets(PacketsInPlace),
    /// No packet came in that time.
    None,
    /// There are no further packets.
    End,
}

/// Packets that lie where the port has received them. Nobody changes them until this value is dropped.
pub struct PacketsInPlace {
    places: Places,
    shared: Arc<Shared<Waiting>>,
    pool: Arc<dyn Pool>,
    number: u64,
}

/// The packets that the run has received, and those that the program holds.
#[derive(Default)]
struct Waiting {
    /// The lists of packets that wait for the program, oldest first.
    lists: VecDeque<Vec<Place>>,
    /// The packets after those of `lists`. The queue leaves its list here while it is idle, so that the program finds it.
    parked: Vec<Place>,
    /// The packets of each [`PacketsInPlace`], by its number.
    held: HashMap<u64, Places>,
    /// Emptied lists, whose memory further packets use.
    spare: Vec<Vec<Place>>,
    next: u64,
    /// The pool of all these packets, once the run has begun.
    pool: Option<Arc<dyn Pool>>,
    /// The run receives nothing more. All packets were freed, and stay as they are, because nobody allocates buffers any more.
    over: bool,
    /// The number of [`PacketsInPlace`] whose packets the program is freeing now.
    freeing: usize,
}

impl Waiting {
    /// Returns true if packets wait for the program.
    fn any(&self) -> bool {
        !self.lists.is_empty() || !self.parked.is_empty()
    }

    /// Takes the oldest list of packets, and remembers its packets as held.
    fn take(&mut self) -> Option<(Places, Arc<dyn Pool>, u64)> {
        let pool = self.pool.clone()?;
        let list = self.lists.pop_front().unwrap_or_else(|| std::mem::take(&mut self.parked));
        if list.is_empty() {
            return None;
        }
        let places = Arc::new(list);
        self.next += 1;
        if !self.over {
            self.held.insert(self.next, Arc::clone(&places));
        }
        Some((places, pool, self.next))
    }

    /// Frees all packets at the end of the run.
    fn end(&mut self) {
        let Some(pool) = self.pool.as_ref().filter(|_| !self.over) else { return };
        let held = self.held.values().map(|held| held.as_slice());
        let lists = self.lists.iter().map(Vec::as_slice);
        for places in held.chain(lists).chain([self.parked.as_slice()]) {
            // SAFETY: the packets are from this pool, and each of them is in one of these lists only. Nobody frees them after `over`.
            unsafe { Place::free(places, &**pool) };
        }
        self.held.clear();
        self.over = true;
    }
}

impl InPlaceReceiver {
    /// Starts to receive. `config` says from which port, and which packet function processes the packets where.
    ///
    /// # Errors
    /// As for [`BatchReceiver::start`](super::BatchReceiver::start).
    pub fn start(mut config: Config, settings: ReceiveSettings) -> Result<Self> {
        if config.buffers == 0 {
            config.buffers = config.buffers().max(4 * settings.frames + 1024);
        }
        let (_, tx) = ports(&mut config, settings)?;
        let shared = Arc::<Shared<Waiting>>::default();
        let wanted = Arc::<AtomicBool>::default();
        tx.push(port(Arc::clone(&shared), Arc::clone(&wanted), settings.frames));
        // A batch that the program holds must not be reused, so only this pipeline may have the pool.
        config.pipelines = 1;
        Ok(Self { run: Run::start(config, shared)?, settings, asked: None, wanted })
    }

    /// Returns the next packets. Waits at most `most` for the first of them.
    ///
    /// # Errors
    /// Why the run could not start or failed, once, after the packets before the failure.
    pub fn next_within(&mut self, most: Duration) -> Result<NextPackets> {
        let begun = Instant::now();
        let waited = begun - *self.asked.get_or_insert(begun);
        let patience = self.settings.wait.saturating_sub(waited);
        let (_, ended) =
            self.run.wait(patience.min(most), |state| (!state.batch.lists.is_empty()).then_some(()));
        if patience <= most && !ended {
            // The packets that came have waited long enough for others.
            self.run.wait(most.saturating_sub(begun.elapsed()), |state| {
                let any = state.batch.any();
                self.wanted.store(!any, Ordering::Relaxed);
                any.then_some(())
            });
        }
        let shared = Arc::clone(&self.run.shared);
        let mut state = shared.lock();
        let only_full = patience > most && !state.ended;
        let taken = match only_full && state.batch.lists.is_empty() {
            true => None,
            false => state.batch.take(),
        };
        let ended = state.ended;
        drop(state);
        if let Some((places, pool, number)) = taken {
            self.asked = None;
            return Ok(NextPackets::Packets(PacketsInPlace { places, shared, pool, number }));
        }
        if !ended {
            return Ok(NextPackets::None);
        }
        self.run.conclude()?;
        Ok(NextPackets::End)
    }

    /// Stops receiving from the port. Packets that were received before still follow.
    pub fn stop(&self) {
        self.run.control.stop();
    }

    /// Returns the flags that end the run.
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.run.control)
    }

    /// Returns what the run has measured, once [`InPlaceReceiver::next_within`] has returned [`NextPackets::End`] or an error.
    pub fn measurement(&self) -> Option<&Measurement> {
        self.run.measurement.as_ref()
    }
}

impl PacketsInPlace {
    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns true if there are no packets.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns for each packet where it begins in the memory of [`PacketsInPlace::memory`], and its length, both in bytes.
    pub fn places(&self) -> impl ExactSizeIterator<Item = (u64, u32)> {
        self.places.iter().map(|place| (place.offset(), place.length()))
    }

    /// Returns the memory of the pool, in which the packets lie. Other packets of the pool lie there, too.
    pub fn memory(&self) -> Region {
        self.pool.region().clone()
    }
}

impl Drop for PacketsInPlace {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.batch.held.remove(&self.number).is_none() {
            return;
        }
        state.batch.freeing += 1;
        drop(state);
        // SAFETY: the packets are from this pool. They were in `held` until now, so `Waiting::end` has not freed them, and can
        // no longer find them.
        unsafe { Place::free(&self.places, &*self.pool) };
        let mut list = Arc::get_mut(&mut self.places).map(std::mem::take).unwrap_or_default();
        list.clear();
        let mut state = self.shared.lock();
        state.batch.freeing -= 1;
        if state.batch.spare.len() < MOST_SPARE {
            state.batch.spare.push(list);
        }
        drop(state);
        // The end of the run may wait for this.
        self.shared.changed.notify_all();
    }
}

/// Returns the specification of the port to which the run sends the packets.
fn port(shared: Arc<Shared<Waiting>>, wanted: Arc<AtomicBool>, most: usize) -> PortSpec {
    let name = "packets in place";
    let properties = Properties { role: Role::Send, moves_payload: false, ..Properties::PLAIN };
    let queue = Mutex::new(Some(PlaceTx::new(shared, wanted, most)));
    let open = move |_: &_| {
        let queue = queue.lock().expect("nothing panics while it holds the queue").take();
        let info = PortInfo {
            name: name.into(),
            path: "the program, in place".into(),
            touches_payload: false,
            max_queues: 1,
            spreads_flows: false,
            link_bits_per_second: None,
            twin: false,
        };
        Ok(Box::new(PlacePort { info, queue }) as Box<dyn Port>)
    };
    PortSpec::Own(OwnPort { name: name.into(), properties, open: Arc::new(open) })
}

struct PlacePort {
    info: PortInfo,
    queue: Option<PlaceTx>,
}

impl Port for PlacePort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, _pools: &[Arc<dyn Pool>], _tx_queues: u16) -> inlane_core::Result<()> {
        Ok(())
    }

    fn take_rx(&mut self, _queue: u16) -> inlane_core::Result<Box<dyn Rx>> {
        Err(inlane_core::Error::port_failed(&self.info.name, "it only sends"))
    }

    fn take_tx(&mut self, _queue: u16, pool: Arc<dyn Pool>) -> inlane_core::Result<Box<dyn Tx>> {
        let Some(mut queue) = self.queue.take() else {
            return Err(inlane_core::Error::port_failed(&self.info.name, "a run has already used it"));
        };
        if !Place::fit(&*pool) {
            let why = "packets in this kind of pool, such as those of DPDK's ports, cannot be received in place; receive them in batches";
            return Err(inlane_core::Error::port_usage(&self.info.name, why));
        }
        queue.start = pool.region().address();
        queue.shared.lock().batch.pool = Some(pool);
        Ok(Box::new(queue))
    }
}

/// Collects packets in a list, and hands the list to the program when it is full or the program wants it. Most calls therefore take no lock.
struct PlaceTx {
    shared: Arc<Shared<Waiting>>,
    /// The program takes a list that is not full. The program sets this, and the queue resets it.
    wanted: Arc<AtomicBool>,
    /// The most packets in a list.
    most: usize,
    /// The address at which the memory of the pool begins.
    start: u64,
    /// The packets since the last list. Empty while `parked`.
    list: Vec<Place>,
    /// The list is in [`Waiting::parked`].
    parked: bool,
    counters: Counters,
}

impl PlaceTx {
    fn new(shared: Arc<Shared<Waiting>>, wanted: Arc<AtomicBool>, most: usize) -> Self {
        Self {
            shared,
            wanted,
            most,
            start: 0,
            list: Vec::new(),
            parked: false,
            counters: Counters::default(),
        }
    }

    /// Hands the list to the program, unless enough lists wait already.
    #[cold]
    fn hand_over(&mut self) {
        let mut state = self.shared.lock();
        if state.closed {
            let pool = state.batch.pool.as_ref().expect("`take_tx` has set the pool");
            // SAFETY: the packets are from this pool, and `send` has kept them. The list is emptied.
            unsafe { Place::free(&self.list, &**pool) };
            self.list.clear();
        } else if state.batch.lists.len() < MOST_LISTS {
            let spare = state.batch.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.most));
            state.batch.lists.push_back(std::mem::replace(&mut self.list, spare));
            self.wanted.store(false, Ordering::Relaxed);
            drop(state);
            self.shared.changed.notify_one();
        }
    }

    /// Leaves the list where the program finds it.
    #[cold]
    fn park(&mut self) {
        let mut state = self.shared.lock();
        state.batch.parked = std::mem::take(&mut self.list);
        self.parked = true;
        drop(state);
        if self.wanted.load(Ordering::Relaxed) {
            self.shared.changed.notify_one();
        }
    }

    /// Takes the parked list back. If the program has taken it, begins another one.
    #[cold]
    fn unpark(&mut self) {
        let mut state = self.shared.lock();
        self.list = std::mem::take(&mut state.batch.parked);
        if self.list.capacity() == 0 {
            self.list = state.batch.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.most));
        }
        self.parked = false;
    }
}

// SAFETY: `send` keeps as many packets as it returns. They are freed once: by a program that drops them, by the queue if the program takes no
// more, or at the end of the run.
unsafe impl Tx for PlaceTx {
    unsafe fn send(&mut self, packets: &[Packet]) -> inlane_core::Result<usize> {
        if self.parked {
            self.unpark();
        }
        if self.list.len() == self.most {
            self.hand_over();
        }
        let taken = packets.len().min(self.most - self.list.len());
        let (start, mut bytes) = (self.start, 0);
        self.list.extend(packets[..taken].iter().map(|packet| {
            bytes += u64::from(packet.length);
            Place::new(packet, start)
        }));
        if self.list.len() == self.most || self.wanted.load(Ordering::Relaxed) && !self.list.is_empty() {
            self.hand_over();
        }
        self.counters.packets += taken as u64;
        self.counters.bytes += bytes;
        Ok(taken)
    }

    fn flush(&mut self) -> inlane_core::Result<()> {
        if self.wanted.load(Ordering::Relaxed) && !self.list.is_empty() {
            self.hand_over();
        }
        Ok(())
    }

    fn idle(&mut self) {
        if !self.list.is_empty() {
            self.park();
        }
    }

    fn finish(&mut self, _keep_waiting: &mut dyn FnMut() -> bool) -> inlane_core::Result<()> {
        self.idle();
        // Packets that a program is freeing would count as lost.
        let waited = self.shared.changed.wait_while(self.shared.lock(), |state| state.batch.freeing > 0);
        waited.expect("nothing panics while it holds the lock").batch.end();
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::HeapPool;
    use inlane_core::packet::{FreeByOffset, PacketMeta};
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

    /// A pool that says when it begins to free packets, and waits until it may go on.
    struct SlowPool {
        pool: HeapPool,
        begins: Sender<()>,
        may_go_on: Mutex<Receiver<()>>,
    }

    impl FreeByOffset for SlowPool {
        unsafe fn free_at(&self, offsets: &[u64]) {
            self.begins.send(()).unwrap();
            self.may_go_on.lock().unwrap().recv().unwrap();
            // SAFETY: the caller's promises.
            unsafe { self.pool.free_at(offsets) }
        }
    }

    // SAFETY: all methods are those of another pool.
    unsafe impl Pool for SlowPool {
        fn allocate(&self, packets: &mut [Packet]) -> usize {
            self.pool.allocate(packets)
        }

        unsafe fn free(&self, _packets: &[Packet]) {
            unreachable!("packets in place are freed by their offsets");
        }

        fn by_offset(&self) -> Option<&dyn FreeByOffset> {
            Some(self)
        }

        fn room(&self) -> usize {
            self.pool.room()
        }

        fn capacity(&self) -> usize {
            self.pool.capacity()
        }

        fn outstanding(&self) -> usize {
            self.pool.outstanding()
        }

        fn region(&self) -> &Region {
            self.pool.region()
        }

        unsafe fn meta(&self, packet: &Packet) -> PacketMeta {
            // SAFETY: the caller's promises.
            unsafe { self.pool.meta(packet) }
        }

        unsafe fn set_meta(&self, packet: &Packet, meta: PacketMeta) {
            // SAFETY: the caller's promises.
            unsafe { self.pool.set_meta(packet, meta) }
        }
    }

    #[test]
    fn the_end_of_a_run_waits_for_a_program_that_frees_packets() {
        let ((begins, begun), (go_on, may_go_on)) = (channel(), channel());
        let pool = SlowPool { pool: HeapPool::new(8, 64).unwrap(), begins, may_go_on: Mutex::new(may_go_on) };
        let (pool, shared) = (Arc::new(pool), Arc::<Shared<Waiting>>::default());
        shared.lock().batch.pool = Some(pool.clone());
        let mut queue = PlaceTx::new(Arc::clone(&shared), Arc::default(), 8);
        queue.start = pool.region().address();
        let mut packets = [Packet::EMPTY; 8];
        assert_eq!(pool.allocate(&mut packets), 8);
        // SAFETY: the packets were just allocated, and are not used again.
        assert_eq!(unsafe { queue.send(&packets) }.unwrap(), 8);
        let (places, of, number) = shared.lock().batch.take().expect("a full list");
        let held = PacketsInPlace { places, shared, pool: of, number };
        let (ended, end) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(held));
            begun.recv().unwrap();
            let pool = pool.clone();
            scope.spawn(move || {
                queue.finish(&mut || true).unwrap();
                ended.send(pool.outstanding()).unwrap();
            });
            let early = end.recv_timeout(Duration::from_millis(50));
            go_on.send(()).unwrap();
            assert_eq!(early, Err(RecvTimeoutError::Timeout), "the run counts unfreed packets as lost");
        });
        assert_eq!(end.recv(), Ok(0));
    }
}
