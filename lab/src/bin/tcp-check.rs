//! A server and a client that run in virtual machines and check the bytes they receive. They use no library of
//! inlane, so they run on the kernel's TCP and, under `inlane offload run`, on an engine's.
//!
//! ```sh
//! tcp-check serve ADDR:PORT       # until a client asks it to end
//! tcp-check exchange ADDR:PORT    # both sides send and check 256 KiB
//! tcp-check hold ADDR:PORT        # prints 'connected', then waits for the end of stdin, then for ECONNRESET
//! tcp-check end ADDR:PORT         # ends the server
//! ```
//!
//! A client's first byte names its command.

use anyhow::{Context, bail, ensure};
use std::io::{ErrorKind, Read, Write, stdin};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How many bytes each side of an exchange sends.
const BYTES: usize = 256 << 10;
/// How long a client tries to connect.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, address] = arguments.as_slice() else { bail!("give a command and an address with a port") };
    match command.as_str() {
        "serve" => return serve(address),
        "exchange" => exchange(&connect(address, b'x')?)?,
        "hold" => hold(address)?,
        "end" => {
            // A server that has ended already may reset the connection.
            let _ = connect(address, b'e')?.read(&mut [0]);
        }
        _ => bail!("'{command}' is no command"),
    }
    println!("{command}: ok");
    Ok(())
}

/// Connects, and sends the command. Tries again while the server or the network is missing.
fn connect(address: &str, command: u8) -> anyhow::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(mut stream) => {
                stream.write_all(&[command])?;
                return Ok(stream);
            }
            Err(error) if start.elapsed() > LIMIT => {
                return Err(error).with_context(|| format!("cannot connect to {address}"));
            }
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Sends the pattern, and checks that the same is received.
fn exchange(stream: &TcpStream) -> anyhow::Result<()> {
    let pattern: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut stream = stream;
            stream.write_all(&pattern)?;
            stream.shutdown(Shutdown::Write)
        });
        let mut stream = stream;
        stream.read_to_end(&mut received)?;
        sending.join().unwrap()
    })?;
    let wrong = (0..BYTES).find(|&i| received.get(i) != Some(&pattern[i]));
    ensure!(
        wrong.is_none() && received.len() == BYTES,
        "received {} bytes, first fault at {wrong:?}",
        received.len()
    );
    Ok(())
}

/// Keeps a connection until it is reset.
fn hold(address: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    println!("connected");
    stdin().read_to_end(&mut Vec::new())?;
    stream.write_all(b"h")?;
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    stream.write_all(&byte)?;
    match stream.read(&mut byte) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        other => bail!("the connection must end with ECONNRESET, but read() returned {other:?}"),
    }
}

/// Serves clients one after another. Held connections stay open.
fn serve(address: &str) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address)?;
    let mut held = Vec::new();
    loop {
        let (mut stream, _) = listener.accept()?;
        let mut command = [0];
        stream.read_exact(&mut command)?;
        match &command {
            b"x" => exchange(&stream)?,
            b"h" => {
                // From here on, the client waits for the end.
                stream.write_all(b"h")?;
                stream.read_exact(&mut command)?;
                held.push(stream);
                println!("holding");
                continue;
            }
            b"e" => break,
            _ => bail!("a client sent the command {command:?}"),
        }
        println!("served");
    }
    println!("serve: ok");
    Ok(())
}
