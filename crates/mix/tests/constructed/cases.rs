//! Constructed cases: for each kind a machine with random numbers, whose bottlenecks follow from the machine.

use crate::machine::{Machine, Pool, Random, Worker};
use crate::session::Case;
use inlane_core::load::{Resource, Use};
use inlane_mix::verdict::Bottleneck;

const GIGA: f64 = 1e9;
const GPU: &str = "gpu:0";

fn pool(resource: Resource, capacity: f64) -> Pool {
    Pool { name: Some(Bottleneck::Resource(resource)), capacity }
}

fn to_device() -> Resource {
    Resource::LinkToDevice(GPU.to_owned())
}

fn from_device() -> Resource {
    Resource::LinkFromDevice(GPU.to_owned())
}

fn port() -> Resource {
    Resource::Port("veth0".to_owned())
}

fn peer() -> Resource {
    Resource::Peer("target".to_owned())
}

/// Memory, both directions of a link, and both together.
struct Host {
    memory: f64,
    convexity: f64,
    link: f64,
    both: f64,
}

const MEMORY: usize = 0;
const TO: usize = 1;
const FROM: usize = 2;
const BOTH: usize = 3;
/// The first pool of a case's own.
const NEXT: usize = 4;

impl Host {
    fn random(random: &mut Random) -> Self {
        let link = random.from(20.0, 60.0) * GIGA;
        Self {
            memory: random.from(4.0, 8.0) * link,
            convexity: random.from(0.05, 0.3),
            link,
            both: 3.0 * link,
        }
    }

    fn machine(
        &self,
        pools: Vec<Pool>,
        users: Vec<Worker>,
        antagonists: &[Resource],
    ) -> (Machine, Vec<Resource>) {
        let mut all = vec![
            pool(Resource::HostMemory, self.memory),
            pool(to_device(), self.link),
            pool(from_device(), self.link),
            Pool { name: Some(Bottleneck::BothDirections(GPU.to_owned())), capacity: self.both },
        ];
        all.extend(pools);
        let mut workers = users;
        for resource in antagonists {
            let at = all
                .iter()
                .position(|pool| pool.name == Some(Bottleneck::Resource(resource.clone())))
                .unwrap();
            // Transfers over the link also cross memory.
            let takes = match at {
                TO => vec![(TO, 1.0), (BOTH, 1.0), (MEMORY, 1.0)],
                FROM => vec![(FROM, 1.0), (BOTH, 1.0), (MEMORY, 1.0)],
                _ => vec![(at, 1.0)],
            };
            let mut antagonist = Worker::new("antagonist", &takes);
            // Copy engines need little time of processors.
            antagonist.time = if at == MEMORY { 3e-12 } else { 1e-13 };
            workers.push(antagonist);
        }
        let machine = Machine { pools: all, workers, quota: None, memory: Some((MEMORY, self.convexity)) };
        (machine, antagonists.to_vec())
    }
}

/// A copy from host memory to the device.
fn copy_to(name: &'static str) -> Worker {
    Worker::new(name, &[(TO, 1.0), (BOTH, 1.0), (MEMORY, 1.0)])
}

fn copy_from(name: &'static str) -> Worker {
    Worker::new(name, &[(FROM, 1.0), (BOTH, 1.0), (MEMORY, 1.0)])
}

/// A copy by a processor core within memory, which reads and writes.
fn memory_copy(name: &'static str, rate: f64, stall: f64) -> Worker {
    let mut worker = Worker::new(name, &[(MEMORY, 2.0)]).own(rate, stall);
    worker.waits_busy = true;
    worker
}

type Build = fn(&mut Random, u64) -> Case;

fn links() -> [Resource; 3] {
    [Resource::HostMemory, to_device(), from_device()]
}

/// All kinds of cases.
pub const KINDS: &[(&str, Build)] = &[
    ("two copies on one link", |random, seed| {
        let host = Host::random(random);
        let users = vec![copy_to("dma"), copy_to("forward").weight(random.from(0.6, 1.6))];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        Case::new("two copies on one link", machine, antagonists, seed)
    }),
    ("link, one load by its cores", |random, seed| {
        let host = Host::random(random);
        let users = vec![copy_to("dma"), copy_to("forward").own(random.from(0.2, 0.4) * host.link, 0.1)];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        Case::new("link, one load by its cores", machine, antagonists, seed)
    }),
    ("joint directions", |random, seed| {
        let mut host = Host::random(random);
        host.both = random.from(1.5, 1.8) * host.link;
        let users = vec![copy_to("dma"), copy_from("back")];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        Case::new("joint directions", machine, antagonists, seed)
    }),
    ("independent directions", |random, seed| {
        let host = Host::random(random);
        let users = vec![copy_to("dma"), copy_from("back")];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        Case::new("independent directions", machine, antagonists, seed)
    }),
    ("quota", |random, seed| {
        let host = Host::random(random);
        let rate = random.from(2.0, 8.0) * GIGA;
        let users = vec![
            Worker::new("forward", &[(MEMORY, 1.0)]).own(rate, 0.1),
            Worker::new("nvme", &[(MEMORY, 1.0)]).own(rate * random.from(0.5, 1.5), 0.1),
        ];
        let (mut machine, antagonists) = host.machine(vec![], users, &[Resource::HostMemory]);
        machine.quota = Some(random.from(0.2, 0.7));
        Case::new("quota", machine, antagonists, seed)
    }),
    ("quota beside a copy engine", |random, seed| {
        let host = Host::random(random);
        let users = vec![
            copy_to("dma"),
            Worker::new("forward", &[(MEMORY, 1.0)]).own(random.from(2.0, 8.0) * GIGA, 0.1),
        ];
        let (mut machine, antagonists) = host.machine(vec![], users, &links());
        machine.quota = Some(random.from(0.3, 0.7));
        Case::new("quota beside a copy engine", machine, antagonists, seed)
    }),
    ("memory is full", |random, seed| {
        let mut host = Host::random(random);
        host.memory = random.from(20.0, 40.0) * GIGA;
        let users = vec![
            memory_copy("dma", host.memory * random.from(0.6, 0.9), random.from(0.0, 0.3)),
            memory_copy("memory", host.memory * random.from(0.6, 0.9), random.from(0.0, 0.3)),
        ];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        Case::new("memory is full", machine, antagonists, seed)
    }),
    ("memory slows early", |random, seed| {
        let mut host = Host::random(random);
        host.memory = random.from(20.0, 40.0) * GIGA;
        host.convexity = random.from(0.2, 0.5);
        let rate = host.memory * random.from(0.15, 0.22);
        let stall = random.from(0.4, 0.8);
        let users = vec![
            Worker::new("forward", &[(MEMORY, 1.0)]).own(rate, stall),
            Worker::new("memory", &[(MEMORY, 2.0)]).own(rate, stall),
        ];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        Case::new("memory slows early", machine, antagonists, seed)
    }),
    ("paced port", |random, seed| {
        let host = Host::random(random);
        let rate = random.from(0.2, 0.6) * host.link;
        let users = vec![copy_to("tx").pace(rate), copy_to("dma")];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        Case::new("paced port", machine, antagonists, seed)
    }),
    ("pace out of reach", |random, seed| {
        let host = Host::random(random);
        let users = vec![copy_to("tx").pace(random.from(0.7, 0.95) * host.link), copy_to("dma")];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        Case::new("pace out of reach", machine, antagonists, seed)
    }),
    ("port of a low rate", |random, seed| {
        let host = Host::random(random);
        let users =
            vec![Worker::new("tx", &[(NEXT, 1.0), (MEMORY, 1.0)]).own(3.0 * GIGA, 0.1), copy_to("dma")];
        let pools = vec![pool(port(), random.from(0.05, 1.2) * GIGA)];
        let (machine, antagonists) = host.machine(pools, users, &links());
        Case::new("port of a low rate", machine, antagonists, seed)
    }),
    ("delayed target", |random, seed| {
        let host = Host::random(random);
        let latency = random.from(0.2, 3.0) * 1e-3;
        let users = vec![
            Worker::new("nvme", &[(NEXT, 1.0), (MEMORY, 1.0)])
                .own(4.0 * GIGA, 0.1)
                .window(32.0 * 4096.0, latency),
            copy_to("dma"),
        ];
        let (machine, antagonists) = host.machine(vec![pool(peer(), 10.0 * GIGA)], users, &links());
        Case::new("delayed target", machine, antagonists, seed)
    }),
    ("two initiators fill a target", |random, seed| {
        let host = Host::random(random);
        let one = |name, random: &mut Random| {
            let latency = random.from(20.0, 40.0) * 1e-6;
            Worker::new(name, &[(NEXT, 1.0), (MEMORY, 1.0)])
                .own(4.0 * GIGA, 0.1)
                .window(64.0 * 4096.0, latency)
        };
        let users = vec![one("nvme", random), one("nvme2", random)];
        let pools = vec![pool(peer(), random.from(1.0, 2.5) * GIGA)];
        let (machine, antagonists) = host.machine(pools, users, &[Resource::HostMemory, peer()]);
        Case::new("two initiators fill a target", machine, antagonists, seed)
    }),
    ("slow packet function", |random, seed| {
        let host = Host::random(random);
        let users = vec![
            Worker::new("forward", &[(MEMORY, 2.0)]).own(random.from(0.5, 3.0) * GIGA, random.from(0.0, 0.1)),
            copy_to("dma"),
        ];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        Case::new("slow packet function", machine, antagonists, seed)
    }),
    ("source ran dry", |random, seed| {
        let host = Host::random(random);
        let mut forward = Worker::new("forward", &[(MEMORY, 2.0)]).own(4.0 * GIGA, 0.1);
        forward.source = Some(random.from(0.001, 2.0) * GIGA);
        let (machine, antagonists) = host.machine(vec![], vec![forward, copy_to("dma")], &links());
        Case::new("source ran dry", machine, antagonists, seed)
    }),
    ("dry source, polling", |random, seed| {
        let host = Host::random(random);
        let mut forward = Worker::new("forward", &[(MEMORY, 2.0)]).own(4.0 * GIGA, 0.1);
        forward.source = Some(random.from(0.5, 2.0) * GIGA);
        forward.polls = true;
        let (machine, antagonists) = host.machine(vec![], vec![forward, copy_to("dma")], &links());
        Case::new("dry source, polling", machine, antagonists, seed)
    }),
    ("polling on a full link", |random, seed| {
        let host = Host::random(random);
        let mut users = vec![copy_to("forward").own(3.0 * host.link, 0.0), copy_to("dma")];
        users[0].polls = true;
        let (machine, antagonists) = host.machine(vec![], users, &links());
        Case::new("polling on a full link", machine, antagonists, seed)
    }),
    ("one core for two loads", |random, seed| {
        let host = Host::random(random);
        let rate = random.from(2.0, 6.0) * GIGA;
        let one = |name, rate: f64| Worker::new(name, &[(NEXT, 1.0 / rate), (MEMORY, 1.0)]).own(rate, 0.0);
        let users = vec![one("forward", rate), one("nvme", rate * random.from(0.7, 1.4))];
        let pools = vec![pool(Resource::Core(1), 1.0)];
        let (machine, antagonists) = host.machine(pools, users, &[Resource::HostMemory, Resource::Core(1)]);
        Case::new("one core for two loads", machine, antagonists, seed)
    }),
    ("hyperthread siblings", |random, seed| {
        let host = Host::random(random);
        let rate = random.from(2.0, 6.0) * GIGA;
        let one = |name, rate: f64| Worker::new(name, &[(NEXT, 1.0 / rate), (MEMORY, 1.0)]).own(rate, 0.0);
        let users = vec![one("forward", rate), one("nvme", rate * random.from(0.7, 1.4))];
        let pools = vec![Pool { name: None, capacity: random.from(1.2, 1.5) }];
        let (machine, antagonists) = host.machine(pools, users, &links());
        Case::new("hyperthread siblings", machine, antagonists, seed)
    }),
    ("a resource that nobody knows", |random, seed| {
        let host = Host::random(random);
        let users = vec![
            Worker::new("nvme", &[(NEXT, 1.0), (MEMORY, 1.0)]),
            Worker::new("tx", &[(NEXT, 1.0), (TO, 1.0), (BOTH, 1.0), (MEMORY, 1.0)]),
        ];
        let pools = vec![Pool { name: None, capacity: random.from(0.6, 0.9) * host.link }];
        let (machine, antagonists) = host.machine(pools, users, &links());
        Case::new("a resource that nobody knows", machine, antagonists, seed)
    }),
    ("wrong uses", |random, seed| {
        let host = Host::random(random);
        let users = vec![copy_to("dma"), copy_to("forward"), copy_from("back")];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        let mut case = Case::new("wrong uses", machine, antagonists, seed);
        // Both state the other direction, or a multiple.
        match (random.next() * 3.0) as usize {
            0 => case.stated[..2].iter_mut().for_each(|uses| swap_directions(uses)),
            1 => case.stated[0]
                .iter_mut()
                .for_each(|used| used.per_byte = used.per_byte.map(|units| 2.0 * units)),
            _ => case.stated[2].iter_mut().for_each(|used| used.resource = to_device()),
        }
        case
    }),
    ("missing uses", |random, seed| {
        let host = Host::random(random);
        let users = vec![copy_to("dma"), copy_to("forward")];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        let mut case = Case::new("missing uses", machine, antagonists, seed);
        case.stated[0].clear();
        if random.chance(0.5) {
            case.stated[1].clear();
        }
        case
    }),
    ("wrong uses, no antagonist", |random, seed| {
        let mut host = Host::random(random);
        host.memory = random.from(0.8, 1.4) * host.link;
        let users = vec![copy_to("dma"), copy_to("forward")];
        let (machine, antagonists) = host.machine(vec![], users, &[Resource::HostMemory]);
        let mut case = Case::new("wrong uses, no antagonist", machine, antagonists, seed);
        let memory = |used: &Use| used.resource != Resource::HostMemory;
        case.stated[..2].iter_mut().for_each(|uses| uses.retain(memory));
        case
    }),
    ("no signals of threads", |random, seed| {
        let host = Host::random(random);
        let users = vec![copy_to("dma"), copy_to("forward").weight(random.from(0.6, 1.6))];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        let mut case = Case::new("no signals of threads", machine, antagonists, seed);
        case.method.threads_known = false;
        case
    }),
    ("noise, drift and steal", |random, seed| {
        let host = Host::random(random);
        let users = vec![copy_to("dma"), copy_to("forward").weight(random.from(0.6, 1.6))];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        let mut case = Case::new("noise, drift and steal", machine, antagonists, seed);
        case.method.noise = random.from(0.03, 0.05);
        case.method.drift = random.from(-0.3, 0.3);
        case.method.stolen = 0.1;
        case.method.bursts = 0.05;
        case.method.blocks = 10;
        case
    }),
    ("few repeats", |random, seed| {
        let host = Host::random(random);
        let users = vec![copy_to("dma"), copy_to("forward")];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        let mut case = Case::new("few repeats", machine, antagonists, seed);
        case.method.blocks = 1 + (random.next() * 3.0) as usize;
        case.method.noise = 0.01;
        case
    }),
    ("equal phases differ", |random, seed| {
        let host = Host::random(random);
        let users = vec![copy_to("dma"), copy_to("forward")];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        let mut case = Case::new("equal phases differ", machine, antagonists, seed);
        case.method.unequal = if random.chance(0.5) { 0.15 } else { 0.05 };
        case
    }),
    ("three loads", |random, seed| {
        let host = Host::random(random);
        let rate = random.from(1.0, 3.0) * GIGA;
        let users =
            vec![copy_to("dma"), copy_to("forward"), Worker::new("nvme", &[(MEMORY, 1.0)]).own(rate, 0.1)];
        let (machine, antagonists) = host.machine(vec![], users, &links());
        Case::new("three loads", machine, antagonists, seed)
    }),
];

fn swap_directions(uses: &mut [Use]) {
    for used in uses.iter_mut().filter(|used| used.resource == to_device()) {
        used.resource = from_device();
    }
}

/// Returns the number of random machines to try: 64, or a quarter of PROPTEST_CASES.
pub fn random_count() -> u64 {
    std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(256) / 4
}

/// Returns a random machine with two or three loads.
pub fn random(seed: u64) -> Case {
    let mut random = Random(seed);
    let mut host = Host::random(&mut random);
    host.memory = random.from(1.0, 6.0) * host.link;
    host.convexity = random.from(0.02, 0.5);
    host.both = random.from(1.5, 2.0) * host.link;
    let mut pools = vec![
        pool(peer(), random.from(0.1, 0.6) * host.link),
        pool(port(), random.from(0.05, 0.5) * host.link),
    ];
    let secret = random.chance(0.2).then(|| {
        pools.push(Pool { name: None, capacity: random.from(0.4, 1.5) * host.link });
        NEXT + 2
    });
    let count = 2 + usize::from(random.chance(0.4));
    let mut users = Vec::new();
    for name in ["one", "two", "three"].into_iter().take(count) {
        let mut takes = vec![(MEMORY, random.from(0.5, 2.5))];
        match (random.next() * 6.0) as usize {
            0 | 1 => takes.extend([(TO, random.from(0.9, 1.2)), (BOTH, 1.0)]),
            2 | 3 => takes.extend([(FROM, random.from(0.9, 1.2)), (BOTH, 1.0)]),
            4 => takes.push((NEXT, 1.0)),
            _ => takes.push((NEXT + 1, 1.0)),
        }
        if let Some(secret) = secret.filter(|_| random.chance(0.6)) {
            takes.push((secret, random.from(0.5, 1.5)));
        }
        let mut worker = Worker::new(name, &takes).weight(random.from(0.5, 2.0));
        match (random.next() * 8.0) as usize {
            0 | 1 => worker = worker.own(random.from(0.05, 0.8) * host.link, random.from(0.0, 0.7)),
            2 => worker = worker.pace(random.from(0.05, 0.8) * host.link),
            3 => worker = worker.window(1e6, 1e6 / (random.from(0.05, 0.8) * host.link)),
            4 => {
                worker = worker.own(random.from(0.3, 1.0) * host.link, random.from(0.0, 0.4));
                worker.source = Some(random.from(0.02, 0.5) * host.link);
            }
            _ => {}
        }
        worker.polls = random.chance(0.2);
        worker.waits_busy = random.chance(0.2);
        users.push(worker);
    }
    let mut resources = links().to_vec();
    resources.retain(|_| random.chance(0.9));
    if random.chance(0.5) {
        resources.push(peer());
    }
    let (mut machine, antagonists) = host.machine(pools, users, &resources);
    if random.chance(0.1) {
        machine.quota = Some(random.from(0.2, 1.5));
    }
    let mut case = Case::new("random", machine, antagonists, seed);
    for uses in &mut case.stated[..count] {
        uses.retain(|_| random.chance(0.92));
        uses.iter_mut()
            .filter(|_| random.chance(0.05))
            .for_each(|used| used.per_byte = used.per_byte.map(|units| 2.0 * units));
    }
    case.method.noise = random.from(0.003, 0.04);
    case.method.common = random.from(0.0, 0.9);
    case.method.drift = random.from(-0.2, 0.2);
    case.method.bursts = random.from(0.0, 0.05);
    case.method.stolen = random.from(0.0, 0.1);
    case.method.blocks = 3 + (random.next() * 8.0) as usize;
    case.method.threads_known = random.chance(0.9);
    case
}
