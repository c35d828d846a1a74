//! The result of `inlane offload trace`.

use clap::ValueEnum;
use inlane_offload::floors::Measured;
use inlane_offload::trace::{Hop, Stage, Times};
use schemars::JsonSchema;
use serde::Serialize;

/// Where the time of a short message goes.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TraceResult {
    /// One measurement for each mode.
    pub modes: Vec<ModeResult>,
    /// The wake-ups of sleeping threads, each measured alone. Null unless there is a prediction.
    pub wake_ups: Option<WakeUps>,
    /// The prediction for engines that do not poll. Null if polling engines with TCP were not measured.
    pub prediction: Option<Prediction>,
    /// The published table of stages.
    pub published: Published,
}

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The kernel's TCP over its loopback interface.
    Kernel,
    /// TCP between two engines.
    Tcp,
    /// RDMA between two engines.
    Rdma,
    /// Two engines, each with a card that runs TCP for it.
    Card,
}

/// The time of messages from the call of send() to the data in the receiver's buffer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ModeResult {
    /// What carries the messages.
    pub mode: Mode,
    /// What is between the two programs.
    pub path: String,
    /// How long the engines poll without work before they sleep. Null for the kernel.
    pub spin_ns: Option<u64>,
    /// The number of measured messages.
    pub messages: u64,
    /// The length of a message.
    pub message_bytes: u64,
    /// The time of messages without time stamps on their way.
    pub whole: Times,
    /// The time of messages with time stamps on their way. The stages of each message add up to it.
    pub traced: Times,
    /// The stages that end at a time stamp. The time of other stages counts in the next stage that does.
    pub stages: Vec<StageResult>,
    /// The passages from port to port over each link.
    pub passages: Vec<PassageResult>,
    /// The sum of the medians of the stages.
    pub sum_ns: f64,
    /// The sum of the medians, divided by the median with time stamps, minus 1.
    pub residual: f64,
    /// What the time stamps cost: the median with them, divided by the median without them, minus 1.
    pub overhead: f64,
}

/// A stage with its times.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StageResult {
    /// The stage.
    pub stage: Stage,
    /// The times of the stage.
    #[serde(flatten)]
    pub times: Times,
    /// The least work of the stage, measured alone between the same cores. Null unless cards run TCP for engines that poll.
    pub floor: Option<StageFloor>,
}

/// The passage of the messages over a link: the stages of both ports and of the wire together.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PassageResult {
    /// The link.
    pub link: Hop,
    /// The times from the written frame to the received one.
    #[serde(flatten)]
    pub times: Times,
    /// The passage measured alone between the same cores. Null unless cards run TCP for engines that poll.
    pub floor: Option<StageFloor>,
}

/// The least work of a stage or passage, measured alone by threads that only poll, with the same time stamps as in the stage.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StageFloor {
    /// What was measured.
    pub measured: Measured,
    /// The times of what was measured.
    #[serde(flatten)]
    pub times: Times,
    /// The median of the stage divided by that of the floor. Null if the latter is 0.
    pub ratio: Option<f64>,
}

impl StageFloor {
    /// Returns the floor of a stage with a median of `median_ns`.
    pub fn new(measured: Measured, times: Times, median_ns: f64) -> Self {
        Self { measured, times, ratio: (times.median_ns > 0.0).then(|| median_ns / times.median_ns) }
    }
}

/// The median times of wake-ups: from the beginning of the call that wakes until the woken thread has the bytes.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WakeUps {
    /// By a socket pair, of a thread in epoll_wait, as a program wakes its engine.
    pub program_to_engine_ns: f64,
    /// By an eventfd, of a thread in epoll_wait, as an engine wakes its peer over memif.
    pub engine_to_engine_ns: f64,
    /// By a socket pair, of a thread in recv(), as an engine wakes its program.
    pub engine_to_program_ns: f64,
}

impl WakeUps {
    /// Returns the sum.
    pub fn sum_ns(&self) -> f64 {
        self.program_to_engine_ns + self.engine_to_engine_ns + self.engine_to_program_ns
    }
}

/// A prediction that was made before the predicted run was measured.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Prediction {
    /// The sum of the medians of the polling run's stages without waits: protocol, data movement, port and placement.
    pub kept_ns: f64,
    /// The sum of the wake-ups, which replace all other stages.
    pub wake_ups_ns: f64,
    /// The predicted median: the sum of both.
    pub predicted_ns: f64,
    /// The measurement, with engines that sleep as soon as they have no work.
    pub measured: ModeResult,
    /// The measured median divided by the predicted one, minus 1.
    pub residual: f64,
}

/// The published table of stages of a 4-byte message.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Published {
    /// The publication.
    pub source: String,
    /// The published times, at the corresponding stages. Those of a protocol and of the driver count both sides.
    pub stages: Vec<PublishedStage>,
    /// The sum for the offload engine.
    pub engine_ns: f64,
    /// The sum for RDMA.
    pub rdma_ns: f64,
    /// The published predictions. They are sums of parts of the table, so agreement says nothing.
    pub identities: Vec<Identity>,
}

/// The published times at a stage.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PublishedStage {
    /// The stage.
    pub stage: Stage,
    /// The time for the offload engine. Null if the table has none.
    pub engine_ns: Option<f64>,
    /// The time for RDMA. Null if the table has none.
    pub rdma_ns: Option<f64>,
}

/// A published number beside the sum of parts of the table.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Identity {
    /// What the number is for.
    pub what: String,
    /// The published number.
    pub published_ns: f64,
    /// The sum of the table's parts.
    pub sum_ns: f64,
}
