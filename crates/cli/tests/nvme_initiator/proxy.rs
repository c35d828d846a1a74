//! A TCP proxy in front of a target. A test uses it to cut the connections to the target.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub struct Proxy {
    pub address: String,
    cut: Arc<AtomicBool>,
    /// The bytes forwarded so far, in both directions.
    pub bytes: Arc<AtomicUsize>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    /// Set it to let the proxy insert bytes into what the target sends, once.
    pub inject: Arc<AtomicBool>,
}

impl Proxy {
    pub fn start(target: &str) -> Self {
        Self::slow(target, u32::MAX)
    }

    /// Starts a proxy that forwards about `rate` bytes per second in each direction of a connection.
    pub fn slow(target: &str, rate: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap().to_string(),
            cut: Arc::default(),
            bytes: Arc::default(),
            streams: Arc::default(),
            inject: Arc::default(),
        };
        let (target, cut) = (target.to_string(), proxy.cut.clone());
        let (bytes, streams, inject) = (proxy.bytes.clone(), proxy.streams.clone(), proxy.inject.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if cut.load(Ordering::SeqCst) {
                    return;
                }
                let other = TcpStream::connect(&target).unwrap();
                streams.lock().unwrap().extend([stream.try_clone().unwrap(), other.try_clone().unwrap()]);
                let to_target = (stream.try_clone().unwrap(), other.try_clone().unwrap(), None);
                for (mut from, mut to, inject) in [to_target, (other, stream, Some(inject.clone()))] {
                    let bytes = bytes.clone();
                    std::thread::spawn(move || {
                        let mut buffer = [0; 16384];
                        while let Ok(count @ 1..) = from.read(&mut buffer) {
                            bytes.fetch_add(count, Ordering::SeqCst);
                            std::thread::sleep(Duration::from_secs_f64(count as f64 / f64::from(rate)));
                            if inject.as_ref().is_some_and(|inject| inject.swap(false, Ordering::SeqCst)) {
                                let _ = to.write_all(&[0xEE; 64]);
                            }
                            if to.write_all(&buffer[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        proxy
    }

    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        for stream in self.streams.lock().unwrap().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wake the listening thread by one more connection. The thread then sees the flag and ends.
        let _ = TcpStream::connect(&self.address);
    }
}
