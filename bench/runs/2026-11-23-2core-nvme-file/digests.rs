//! Measures CRC-32C alone and after a copy. To build it, copy it to `crates/nvme/examples`.
use inlane_nvme::pdu::{RunningDigest, digest};
use std::hint::black_box;
use std::time::Instant;
fn main() {
    let memory = vec![7_u8; 1 << 30];
    let mut out = vec![1_u8; 8 << 20];
    for size in [4096_usize, 16384, 131072] {
        let time = |name: &str, f: &mut dyn FnMut(usize)| {
            let mut best = f64::MAX;
            for _ in 0..5 {
                let n = (64 << 20) / size;
                let start = Instant::now();
                for i in 0..n { f(i) }
                best = best.min(start.elapsed().as_secs_f64() / (n * size) as f64);
            }
            println!("{size:7} {name:34} {:6.1} GB/s  {:8.0} ns", 1e-9 / best, best * size as f64 * 1e9);
        };
        let hot = memory[..size].to_vec();
        time("digest, hot", &mut |_| { black_box(digest(black_box(&hot))); });
        time("running digest, hot", &mut |_| { let mut d = RunningDigest::default(); d.update(black_box(&hot)); black_box(d.bytes()); });
        time("running digest, hot, 4 KiB parts", &mut |_| { let mut d = RunningDigest::default(); for p in black_box(&hot).chunks(4096) { d.update(p); } black_box(d.bytes()); });
        let mut random = 1_u64;
        let mut at = || { random = random.wrapping_mul(6364136223846793005).wrapping_add(1); (random >> 33) as usize % (memory.len() / size - 1) * size };
        time("digest, from memory", &mut |_| { let a = at(); black_box(digest(black_box(&memory[a..a + size]))); });
        time("copy from memory, 8 buffers", &mut |i| { let a = at(); let o = i % 8 * size; out[o..o + size].copy_from_slice(black_box(&memory[a..a + size])); });
        time("copy, then digest, 16 KiB blocks", &mut |i| { let a = at(); let o = i % 8 * size; let mut d = RunningDigest::default();
            for b in (0..size).step_by(16384) { let e = size.min(b + 16384); out[o + b..o + e].copy_from_slice(&memory[a + b..a + e]); d.update(black_box(&out[o + b..o + e])); } black_box(d.bytes()); });
        time("copy, then digest, 4 KiB blocks", &mut |i| { let a = at(); let o = i % 8 * size; let mut d = RunningDigest::default();
            for b in (0..size).step_by(4096) { let e = size.min(b + 4096); out[o + b..o + e].copy_from_slice(&memory[a + b..a + e]); d.update(black_box(&out[o + b..o + e])); } black_box(d.bytes()); });
    }
}
