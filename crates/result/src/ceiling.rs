//! The ceiling of a result.

use crate::{Cell, Quantity, Value, phrase};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt::Display;

/// The highest rate that the resources of a path can reach. It is measured or computed on this machine. `R` says which
/// resource limits the rate, and how its capacity is known: a type of the system that has the path.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling<R> {
    /// The resource that limits the rate.
    pub resource: R,
    /// The ceiling in bytes per second, if the resource limits bytes.
    pub bytes_per_second: Option<f64>,
    /// The ceiling in packets per second, if the resource limits packets.
    pub packets_per_second: Option<f64>,
}

impl<R: Display> Ceiling<R> {
    /// Creates the ceiling of a resource that limits bytes.
    pub fn of_bytes(bytes_per_second: f64, resource: R) -> Self {
        Self { resource, bytes_per_second: Some(bytes_per_second), packets_per_second: None }
    }

    /// Returns the ceiling as a cell: its rates, and the resource that limits the rates.
    pub fn cell(&self) -> Cell {
        Cell::new("ceiling", rates(self.packets_per_second, self.bytes_per_second, self.resource.to_string()))
    }
}

/// The highest rate that the resources of a path can reach. It is measured or computed on this machine.
#[derive(Serialize, JsonSchema)]
struct InDocument<'a, R> {
    /// The resource that limits the rate, and how its capacity was measured or computed, as a sentence.
    what: String,
    /// The resource, as data.
    resource: &'a R,
    /// The ceiling in bytes per second, if the resource limits bytes.
    bytes_per_second: Option<f64>,
    /// The ceiling in packets per second, if the resource limits packets.
    packets_per_second: Option<f64>,
}

impl<R: Display + Serialize> Serialize for Ceiling<R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { resource, bytes_per_second, packets_per_second } = self;
        let (bytes_per_second, packets_per_second) = (*bytes_per_second, *packets_per_second);
        InDocument { what: resource.to_string(), resource, bytes_per_second, packets_per_second }
            .serialize(serializer)
    }
}

impl<R: JsonSchema> JsonSchema for Ceiling<R> {
    fn schema_name() -> Cow<'static, str> {
        "Ceiling".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        InDocument::<R>::json_schema(generator)
    }
}

/// Returns rates and what has them. If there is a packet rate, shows the byte rate in bits per second, as is usual for
/// networks. Otherwise shows it in bytes per second.
pub fn rates(packets: Option<f64>, bytes: Option<f64>, what: String) -> Value {
    let packet_rate = packets.map(|rate| Quantity::packets_per_second(rate).into());
    let byte_rate = bytes.map(|bytes| match packets {
        Some(_) => Quantity::bits_per_second(bytes * 8.0).into(),
        None => Quantity::ByteRate(bytes).into(),
    });
    match (packet_rate, byte_rate) {
        (None, None) => what.into(),
        (packet_rate, byte_rate) => {
            let rates = Value::list(packet_rate.into_iter().chain(byte_rate), ", ");
            phrase![rates, ": ", what]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_packets_are_in_bits_and_rates_of_bytes_in_bytes() {
        let text = |packets, bytes| rates(packets, bytes, "x".into()).to_string();
        assert_eq!(text(Some(1e6), Some(64e6)), "1.00 Mpps, 512.00 Mb/s: x");
        assert_eq!(text(None, Some(64e6)), "64.00 MB/s: x");
        assert_eq!(text(None, None), "x");
    }
}
