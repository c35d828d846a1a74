//! Large networks for tests and benchmarks.

use super::{Flow, Network, Resource, Sharing};

/// Creates `flows` flows over `resources` resources. Each flow uses five resources.
pub fn network(flows: usize, resources: usize, seed: u64, sharing: impl Fn(usize) -> Sharing) -> Network {
    let mut state = seed;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    let mut network = Network::new();
    let ids: Vec<_> = (0..resources)
        .map(|index| {
            let capacity = 10f64.powf(9.0 + 2.0 * random());
            network.add_resource(Resource { capacity, sharing: sharing(index) }).unwrap()
        })
        .collect();
    for _ in 0..flows {
        let mut flow = Flow { weight: 0.5 + random(), ..Flow::default() };
        for _ in 0..5 {
            flow = flow.using(ids[(random() * resources as f64) as usize], 0.1 + random());
        }
        flow.demand = (random() < 0.3).then(|| 10f64.powf(6.0 + 3.0 * random()));
        let bytes = 10f64.powf(3.0 + 3.0 * random());
        network.add_flow(flow.in_flight(bytes, 1e-6 + 100e-6 * random())).unwrap();
    }
    network
}

/// Creates flows that share one resource. Each is limited by its demand, just below the share that the flows before it
/// leave. So each round of the filling ends one flow only.
pub fn rounds(flows: usize) -> Network {
    let mut network = Network::new();
    let link = network.add_resource(Resource::new(1e9)).unwrap();
    let mut left = 1e9;
    for index in 0..flows {
        let share = left / (flows - index) as f64 * (1.0 - 1e-9);
        network.add_flow(Flow::default().using(link, 1.0).at_most(share)).unwrap();
        left -= share;
    }
    network
}

/// Returns the processor time of this thread in seconds. Other programs on the machine do not count.
pub fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
