//! The settings of a run that messages of this crate name.

use inlane_core::setting::Field;

macro_rules! fields {
    ($($(#[$doc:meta])* $constant:ident = $name:literal;)*) => {
        $($(#[$doc])* pub const $constant: Field = Field::new($name);)*

        /// All fields of this module.
        pub const ALL: &[Field] = &[$($constant),*];
    };
}

fields! {
    /// The port to receive from.
    RX = "rx";
    /// The ports to send to.
    TX = "tx";
    /// The two ports of a route in both directions.
    BETWEEN = "between";
    /// The size of the packets that a port makes.
    SIZE = "size";
    /// The rate at which packets are offered.
    RATE = "rate";
    /// The packet function.
    FUNCTION = "function";
    /// The function that checkers compare the packet function with.
    REFERENCE = "reference";
    /// The device that runs the packet function.
    ON = "on";
    /// How control flows between threads and device.
    METHOD = "method";
    /// The latency limit of the search for a method.
    MAX_LATENCY = "max-latency";
    /// Worker threads of a pipeline.
    WORKERS = "workers";
    /// Added work per packet.
    WORK = "work";
    /// The memory that packets for a GPU lie in.
    MEMORY = "memory";
    /// The bytes of each packet that are copied to GPU memory.
    HEADER_SPLIT = "header-split";
    /// Blocks of a persistent kernel.
    BLOCKS = "blocks";
    /// Threads of a kernel's block.
    THREADS = "threads";
    /// CUDA streams.
    STREAMS = "streams";
    /// Items of one CUDA graph.
    GRAPH_ITEMS = "graph-items";
    /// Parallel branches of a CUDA graph.
    GRAPH_BRANCHES = "graph-branches";
    /// The pause between two polls of a kernel.
    PAUSE = "pause";
    /// The time after which an unfinished item ends the run.
    WATCHDOG = "watchdog";
    /// The priority of kernels.
    PRIORITY = "priority";
    /// Whether the traffic of the GPU's link is measured.
    MEASURE_PCIE = "measure-pcie";
    /// The largest number of packets in a burst.
    BURST = "burst";
    /// Slots of the burst ring.
    SLOTS = "slots";
    /// Pipelines of each direction.
    PIPELINES = "pipelines";
    /// What to do when the ring or a port is full.
    OVERLOAD = "overload";
    /// The cores of the threads.
    CORES = "cores";
    /// Packet buffers of each pipeline.
    BUFFERS = "buffers";
    /// The data room of packet buffers.
    ROOM = "room";
    /// Whether root's privileges are kept.
    KEEP_PRIVILEGES = "keep-privileges";
    /// The time after which a run ends.
    DURATION = "duration";
    /// The search for the highest rate without loss.
    ZERO_LOSS = "zero-loss";
    /// The competing job.
    COMPETE = "compete";
    /// The capture file that sent packets are also written to.
    CAPTURE = "capture";
}
